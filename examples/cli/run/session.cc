#include "cli/run/session.h"

#include <fmt/format.h>

#include <utility>

#include "cli/common/progress.h"
#include "host/open_decoder.h"
#include "host/utf8.h"
#include "moert/backend.h"
#include "moert/default_thread_pool.h"
#include "moert/expert_source.h"
#include "moert/offline/checkpoint.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

absl::StatusOr<std::shared_ptr<const ExpertSource>> OpenExperts(const RunOptions& options,
                                                                const HfConfig& config) {
  if (!options.experts.empty()) {
    MOERT_ASSIGN_OR_RETURN(std::shared_ptr<const ExpertSource> pack,
                           OpenExpertPack(options.experts));
    // The two directories are given separately: a pack of another model would compute nonsense.
    if (pack->model().layers != config.moe.layers) {
      return absl::InvalidArgumentError(fmt::format(
          "--experts {}: its MoE layers are not those of {}", options.experts, options.model));
    }
    return pack;
  }
  Progress progress("packing experts", !options.quiet);
  OpenModelOptions open;
  open.cache_dir = options.cache;
  // Schemes in which files come are the CPU's alone.
  open.widen = options.backend != "cpu" && CudaStatus().ok();
  open.user = &progress;
  if (!options.quiet) {
    open.log = [](void*, absl::string_view line) { fmt::print(stderr, "{}\n", std::string(line)); };
    open.progress = [](void* user, int64_t done, int64_t total) {
      static_cast<Progress*>(user)->Update(done, total);
    };
  }
  return OpenModel(options.model, open);
}

}  // namespace

absl::StatusOr<Session> Session::Open(const RunOptions& options, HfConfig config,
                                      int64_t max_rows) {
  Session s;
  s.config = std::move(config);
  MOERT_ASSIGN_OR_RETURN(EngineOptions engine_options, MakeEngineOptions(options));
  engine_options.max_tokens_per_forward = max_rows;
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.model));
  MOERT_ASSIGN_OR_RETURN(auto experts, OpenExperts(options, s.config));
  // The host and the engine take turns: their pools are as large, but only one of them works.
  ThreadPoolOptions pool_options;
  pool_options.threads = options.threads;
  MOERT_ASSIGN_OR_RETURN(s.pool, CreateThreadPool(pool_options));
  if (!options.trace.empty()) {
    TraceHeader header = MakeTraceHeader(*experts, max_rows);
    header.strategy = options.strategy;
    header.clock = options.clock;
    MOERT_ASSIGN_OR_RETURN(s.trace, CreateTraceFiles(options.trace, header));
    engine_options.trace = s.trace;
  }
  MOERT_ASSIGN_OR_RETURN(s.engine, Engine::Create(std::move(experts), engine_options));
  if (s.engine->backend() == BackendKind::kCpu && options.host_budget >= 0 && !options.quiet) {
    fmt::print(stderr, "note: --host-budget has no effect on the cpu backend\n");
  }
  host::OpenDecoderOptions open;
  open.max_rows = max_rows;
  open.device = engine_options.device;
  // A trace and a virtual clock see every step; a recorded one would pass unseen.
  open.graphs = options.graphs == "auto" && s.trace == nullptr && options.clock != "virtual";
  MOERT_ASSIGN_OR_RETURN(
      host::OpenedDecoder opened,
      host::OpenDecoder(*checkpoint, s.config, s.engine.get(), s.pool.get(), open));
  if (!opened.note.empty() && !options.quiet) fmt::print(stderr, "note: {}\n", opened.note);
  s.decoder = std::move(opened.model);
  return s;
}

absl::Status Session::Finish(RunReport report, const RunOptions& options) {
  if (trace != nullptr) MOERT_RETURN_IF_ERROR(trace->Close());
  report.model = host::ToValidUtf8(options.model);
  report.seed = options.seed;
  report.backend = std::string(BackendName(engine->backend()));
  report.virtual_clock = options.clock == "virtual";
  return WriteReport(report, *engine, options.json, options.quiet);
}

int SetupExitStatus(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInternal ? kExitFailure : kExitUsage;
}

}  // namespace moert::cli
