#include "cli/run/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "cli/common/budget_flag.h"
#include "cli/common/checkpoint_choice.h"
#include "cli/common/interrupt.h"
#include "cli/common/machine.h"
#include "cli/common/model_parts.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "host/open_decoder.h"
#include "host/utf8.h"
#include "moert/backend.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/open_as.h"
#include "moert/offline/tensor_account.h"
#include "moert/source/expert_source.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"
#include "moert/tools/prompt_rows.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Source = std::shared_ptr<const ExpertSource>;

absl::StatusOr<Source> OpenPack(const RunOptions& options, const HfConfig& config) {
  MOERT_ASSIGN_OR_RETURN(Source pack, OpenExpertPack(options.experts));
  // The two directories are given separately: a pack of another model would compute nonsense.
  if (pack->model().layers != config.moe.layers) {
    return absl::InvalidArgumentError(fmt::format(
        "--experts {}: its MoE layers are not those of {}", options.experts, options.model));
  }
  return pack;
}

absl::StatusOr<Source> OpenAs(const RunOptions& options, OpenAsOptions open) {
  open.cache_dir = options.cache;
  open.threads = options.threads;
  const CatchInterrupts catching;
  open.cancelled = Interrupted;
  Progress progress("quantizing matrices", !options.quiet);
  open.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  if (!options.quiet) {
    open.log = [](const std::string& line) { Print(stderr, "{}\n", line); };
  }
  return OpenModelAs(options.model, open);
}

absl::StatusOr<Source> OpenChosen(const RunOptions& options, CheckpointChoice choice) {
  if (choice.method == QuantMethod::kGptq) {
    return absl::InvalidArgumentError(fmt::format(
        "strategy {} would serve {}, which gptq has to make, as it was calibrated: calibrate with "
        "--method hqq, or give the pack by --experts",
        options.strategy, choice.strategy.spec));
  }
  OpenAsOptions open;
  open.plans = std::move(choice.versions);
  open.method = choice.method;
  return OpenAs(options, std::move(open));
}

absl::StatusOr<Source> OpenCheckpoint(const RunOptions& options) {
  Progress progress("packing experts", !options.quiet);
  OpenModelOptions open;
  open.cache_dir = options.cache;
  open.mode = options.pack ? OpenMode::kPack : OpenMode::kPackIfThere;
  open.user = &progress;
  if (!options.quiet) {
    open.log = [](void*, absl::string_view line) { Print(stderr, "{}\n", std::string(line)); };
    open.progress = [](void* user, int64_t done, int64_t total) {
      static_cast<Progress*>(user)->Update(done, total);
    };
  }
  return OpenModel(options.model, open);
}

// If `auto` chooses versions to make, `engine` receives its choice.
absl::StatusOr<Source> OpenExperts(const RunOptions& options, const HfConfig& config,
                                   EngineOptions* engine) {
  const int given = !options.experts.empty() + !options.as.empty() + options.pack;
  if (given > 1) return absl::InvalidArgumentError("give one of --experts, --as and --pack");
  if (!options.experts.empty()) return OpenPack(options, config);
  if (!options.as.empty()) {
    OpenAsOptions open;
    MOERT_ASSIGN_OR_RETURN(open.schemes, ParseSchemes(options.as));
    return OpenAs(options, std::move(open));
  }
  MOERT_ASSIGN_OR_RETURN(auto choice, ChooseForCheckpoint(options.model, config, *engine));
  if (!choice) return OpenCheckpoint(options);
  engine->strategy = choice->strategy.spec;
  engine->budget = choice->strategy.budget;
  if (!options.quiet) {
    Print(stderr, "note: {}: {}\n", choice->strategy.spec, choice->strategy.why);
  }
  if (choice->versions.empty()) return OpenCheckpoint(options);
  return OpenChosen(options, *std::move(choice));
}

// An error that says how to make versions which the strategy serves and the source lacks.
absl::Status CheckVersions(const RunOptions& options, const ExpertSource& source) {
  MOERT_ASSIGN_OR_RETURN(const Strategy strategy, MakeStrategy(options.strategy));
  std::vector<std::string> there;
  there.reserve(static_cast<size_t>(source.num_versions()));
  for (int v = 0; v < source.num_versions(); ++v) there.emplace_back(source.version_name(v));
  for (const std::string& version : strategy.versions) {
    if (std::find(there.begin(), there.end(), version) != there.end()) continue;
    const std::string all = absl::StrJoin(strategy.versions, ",");
    return absl::InvalidArgumentError(fmt::format(
        "strategy {} serves the versions {}; {} has {}. Give --as {} (quantizes once, into the "
        "cache), or make a pack: moert-pack quantize --model {} --out PACK --schemes {}, then "
        "--experts PACK",
        options.strategy, all, source.name(), absl::StrJoin(there, ","), all, options.model, all));
  }
  return absl::OkStatus();
}

// Warns of a budget beyond the machine's memory, at which the kernel would kill the process.
void WarnOfMemory(const RunOptions& options, const EngineOptions& engine,
                  const ExpertSource& source, const Checkpoint& checkpoint,
                  const HfConfig& config) {
  if (options.quiet || engine.backend == BackendKind::kCuda) return;
  const absl::StatusOr<MemoryPlan> plan = Engine::Plan(source, engine);
  if (!plan.ok()) return;  // Create says why
  // Not more than all experts are ever held.
  const int64_t held = std::min(plan->budget_bytes, plan->fixed_bytes() + plan->pool_bytes());
  const std::string warning = MemoryWarning(
      ReadMemoryLimits(), held, HostBytes(checkpoint, config, engine.max_tokens_per_forward));
  if (!warning.empty()) Print(stderr, "{}\n", warning);
}

bool RunsOnCpu(const EngineOptions& engine) {
  return engine.backend == BackendKind::kCpu || !CudaStatus().ok();
}

// Counts the experts' use for the next run to begin with. Not on a device, as a sink does not see
// replays of CUDA graphs, nor on a virtual clock, whose times must not depend on earlier runs.
absl::Status PrepareWarmStart(const RunOptions& options, const ExpertSource& source,
                              EngineOptions* engine, Session* s) {
  if (options.warm == "off" || options.clock == "virtual" || !RunsOnCpu(*engine)) {
    return absl::OkStatus();
  }
  s->uses = std::make_shared<UseCounter>(source.model(), engine->trace);
  s->uses_path = UseCountsPath(source.name(), source.name() != options.model, options.cache);
  engine->trace = s->uses;
  return absl::OkStatus();
}

absl::Status BeginWarmStart(const RunOptions& options, Session* s) {
  if (s->uses == nullptr) return absl::OkStatus();
  const bool last = options.warm == "auto";
  const auto counts = last ? ReadUseCounts(s->uses_path, s->engine->model())
                           : CalibratedCounts(options.warm, s->engine->model());
  if (last && !counts.ok()) return absl::OkStatus();  // the first run, or a file that is renewed
  MOERT_RETURN_IF_ERROR(counts.status());
  MOERT_ASSIGN_OR_RETURN(s->warm, WarmStart::Create(s->engine.get(), WarmStart::ByCounts(*counts)));
  return absl::OkStatus();
}

// Notes where --dtype asks for numerics that these experts do not have.
void NoteNumerics(const RunOptions& options, const ExpertSource& source,
                  const Checkpoint& checkpoint, const HfConfig& config) {
  if (options.quiet) return;
  const bool fp8 = options.dtype == "fp8";
  const auto rounds = [fp8](const Scheme& s) {
    if (fp8) return s.imported() && s.fp8;
    return s.act_bits == 16 && !s.is_bf16() && !s.imported();
  };
  bool effect = !fp8 && options.dtype != "int8";
  for (int v = 0; v < source.num_versions() && !effect; ++v) {
    const ExpertFormat& format = source.layout(0, 0, v).format;
    effect = rounds(format.gate) || rounds(format.up) || rounds(format.down);
  }
  if (!effect) {
    Print(stderr, "note: --dtype {} has no effect on experts in {}\n", options.dtype,
          std::string(source.version_name(0)));
  }
  if (options.dtype != "f32") return;
  const auto account = AccountForTensors(checkpoint, config);
  if (!account.ok()) return;  // the decoder says why
  const bool floats = config.quantization.form == StoredWeights::kPlain;
  for (const AccountedTensor& a : *account) {
    if (a.what != "routed experts") continue;
    if (!floats && !absl::EndsWith(a.tensor->name, ".weight")) continue;  // scales
    const DType type = a.tensor->dtype;
    if (type != DType::kF32 && type != DType::kF16) continue;
    Print(stderr, "note: experts are {} in the file and rounded to bf16\n",
          std::string(DTypeName(type)));
    return;
  }
}

// More rows per step if a prompt would otherwise wait for experts.
absl::Status SizeSteps(const RunOptions& options, const ExpertSource& source, int64_t prompt,
                       EngineOptions* engine) {
  if (!RunsOnCpu(*engine) || prompt <= engine->max_tokens_per_forward) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const PromptRows chosen, ChoosePromptRows(source, *engine, prompt));
  if (chosen.rows == engine->max_tokens_per_forward) return absl::OkStatus();
  engine->max_tokens_per_forward = chosen.rows;
  if (!options.quiet) Print(stderr, "note: the prompt in steps of {}\n", chosen.why);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Session> Session::Open(const RunOptions& options, HfConfig config, int64_t max_rows,
                                      int64_t prompt) {
  Session s;
  s.config = std::move(config);
  MOERT_ASSIGN_OR_RETURN(EngineOptions engine_options, MakeEngineOptions(options));
  engine_options.max_tokens_per_forward = max_rows;
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.model));
  MOERT_ASSIGN_OR_RETURN(auto experts, OpenExperts(options, s.config, &engine_options));
  MOERT_ASSIGN_OR_RETURN(engine_options.host_budget,
                         ParseHostBudget(options.host_budget, ExpertBytes(*experts)));
  MOERT_RETURN_IF_ERROR(CheckVersions(options, *experts));
  MOERT_RETURN_IF_ERROR(SizeSteps(options, *experts, prompt, &engine_options));
  WarnOfMemory(options, engine_options, *experts, *checkpoint, s.config);
  NoteNumerics(options, *experts, *checkpoint, s.config);
  // The host and the engine take turns: their pools are as large, but only one of them works.
  ThreadPoolOptions pool_options;
  pool_options.threads = options.threads;
  MOERT_ASSIGN_OR_RETURN(s.pool, CreateThreadPool(pool_options));
  if (!options.trace.empty()) {
    TraceHeader header = MakeTraceHeader(*experts, engine_options.max_tokens_per_forward);
    header.strategy = options.strategy;
    header.clock = options.clock;
    const TracePaths paths{options.trace, options.trace + ".perfetto.json", Existing::kReplace};
    MOERT_ASSIGN_OR_RETURN(s.trace, CreateTraceFiles(paths, header));
    engine_options.trace = s.trace;
  }
  MOERT_RETURN_IF_ERROR(PrepareWarmStart(options, *experts, &engine_options, &s));
  MOERT_ASSIGN_OR_RETURN(s.engine, Engine::Create(std::move(experts), engine_options));
  MOERT_RETURN_IF_ERROR(BeginWarmStart(options, &s));
  if (s.engine->backend() == BackendKind::kCpu && !options.host_budget.empty() && !options.quiet) {
    Print(stderr, "note: --host-budget has no effect on the cpu backend\n");
  }
  Progress progress("reading dense weights", !options.quiet);
  host::OpenDecoderOptions open;
  open.max_rows = engine_options.max_tokens_per_forward;
  open.device = engine_options.device;
  // A trace and a virtual clock have to see every step; replays of a graph would bypass them.
  open.graphs =
      options.graphs == "auto" && engine_options.trace == nullptr && options.clock != "virtual";
  MOERT_ASSIGN_OR_RETURN(
      host::OpenedDecoder opened,
      host::OpenDecoder(*checkpoint, s.config, s.engine.get(), s.pool.get(), open));
  if (!opened.note.empty() && !options.quiet) Print(stderr, "note: {}\n", opened.note);
  s.decoder = std::move(opened.model);
  return s;
}

absl::Status Session::Finish(RunReport report, const RunOptions& options) {
  if (trace != nullptr) MOERT_RETURN_IF_ERROR(trace->Close());
  if (warm != nullptr) {
    report.extra["warm_start"] = {{"asked", warm->stats().asked},
                                  {"arrived", warm->stats().arrived}};
  }
  warm.reset();
  if (uses != nullptr && !uses_path.empty()) {
    const absl::Status kept = WriteUseCounts(uses_path, uses->counts());
    if (!kept.ok() && !options.quiet) {
      Print(stderr, "note: {}\n", std::string(kept.message()));
    }
  }
  report.model = host::ToValidUtf8(options.model);
  report.seed = options.seed;
  report.backend = std::string(BackendName(engine->backend()));
  report.virtual_clock = options.clock == "virtual";
  return WriteReport(report, *engine, options.json, options.quiet);
}

int SetupExitStatus(const absl::Status& status) {
  return absl::IsInternal(status) || absl::IsCancelled(status) ? kExitFailure : kExitUsage;
}

}  // namespace moert::cli
