// moert-bench decode, prefill, layer: strategies against each other on synthetic experts of a
// published shape, with hindsight bounds beside them.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/bench/bench_subject.h"
#include "cli/bench/commit.h"
#include "cli/bench/device_bench.h"
#include "cli/bench/engine_bench.h"
#include "cli/bench/model_options.h"
#include "cli/bench/model_report.h"
#include "cli/common/budget_flag.h"
#include "cli/common/output.h"
#include "cli/common/plot.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "moert/expert_store.h"
#include "moert/thread_pool.h"
#include "util/aligned_buffer.h"
#include "util/bytes_text.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

// Marks a variant that begins after the warm-up, with the high experts of the variant before it.
constexpr char kInherits[] = "hot=before";

/// Engines of every strategy and budget on the same steps.
class ModelBench {
 public:
  explicit ModelBench(const ModelBenchOptions& options) : o_(options) {}

  absl::Status Open();
  absl::StatusOr<json> Run(const std::string& command);

 private:
  absl::StatusOr<VariantGroup> RunGroup(const std::string& budget, int64_t batch);
  absl::Status MakeEngines(const std::string& budget, int64_t rows, VariantGroup* group);
  absl::Status Inherit(const std::string& budget, int64_t rows, std::vector<Variant>* variants);
  absl::StatusOr<double> TransferMs() const;
  absl::StatusOr<std::unique_ptr<StepRunner>> MakeRunner(int64_t rows);
  json Describe() const;
  int64_t AttentionBytes(int64_t rows) const;
  int64_t AttentionNs(int64_t rows) const;

  const ModelBenchOptions& o_;
  std::unique_ptr<DeviceBench> device_;
  BenchSubject subject_;
  std::unique_ptr<AttentionLoop> attention_;
  std::unique_ptr<ThreadPool> makers_;  // of hidden states
  double read_bytes_per_s_ = 0;
  EngineOptions engine_options_;
  std::vector<StrategyChoice> strategies_;
  std::vector<std::string> budgets_;
  bool traced_ = false;
};

absl::Status ModelBench::Open() {
  MOERT_ASSIGN_OR_RETURN(engine_options_, MakeEngineOptions(o_));
  MOERT_ASSIGN_OR_RETURN(strategies_, ParseStrategies(o_.strategy));
  if (o_.on_device()) {
    MOERT_ASSIGN_OR_RETURN(device_, MakeCudaBench());
    MOERT_ASSIGN_OR_RETURN(makers_, CreateThreadPool({}));
  }
  budgets_ = absl::StrSplit(o_.budget, ',', absl::SkipWhitespace());
  if (budgets_.empty()) return absl::InvalidArgumentError("--budget: no budget");
  for (const std::string& budget : budgets_) {
    MOERT_RETURN_IF_ERROR(ParseBudget(budget).status());
  }
  MOERT_RETURN_IF_ERROR(subject_.Open(o_, device_.get()));
  MOERT_ASSIGN_OR_RETURN(engine_options_.host_budget,
                         ParseHostBudget(o_.host_budget, ExpertBytes(*subject_.experts())));
  if (device_ != nullptr) {
    read_bytes_per_s_ = device_->ReadBytesPerSecond();
  } else if (o_.clock == "wall") {
    MOERT_ASSIGN_OR_RETURN(attention_, AttentionLoop::Create(o_.threads));
    read_bytes_per_s_ = attention_->ReadBytesPerSecond();
  }
  return absl::OkStatus();
}

int64_t ModelBench::AttentionBytes(int64_t rows) const {
  if (device_ == nullptr || o_.bench == "layer") return 0;
  if (o_.attention_us >= 0) return static_cast<int64_t>(1e-6 * o_.attention_us * read_bytes_per_s_);
  // Weights are read once, until arithmetic takes longer: from some 128 rows on. The cache of each
  // request is read; a prompt's tokens share one read.
  const double weights = 2 * static_cast<double>(subject_.shape().attention_parameters) *
                         std::max(1.0, static_cast<double>(rows) / 128);
  const int64_t requests = o_.prefill() ? rows / o_.prompt : rows;
  return static_cast<int64_t>(weights) + requests * o_.context * subject_.shape().kv_bytes;
}

int64_t ModelBench::AttentionNs(int64_t rows) const {
  if (device_ != nullptr) {
    return static_cast<int64_t>(1e9 * static_cast<double>(AttentionBytes(rows)) /
                                read_bytes_per_s_);
  }
  if (attention_ == nullptr || o_.bench == "layer") return 0;
  if (o_.attention_us >= 0) return static_cast<int64_t>(o_.attention_us * 1e3);
  // Its projections stream their bf16 weights once for up to eight tokens, and are bound by
  // arithmetic beyond.
  const double bytes = 2 * static_cast<double>(subject_.shape().attention_parameters);
  const double passes = std::max(1.0, static_cast<double>(rows) / 8);
  return static_cast<int64_t>(1e9 * bytes / read_bytes_per_s_ * passes);
}

/// Memory the system has available now.
int64_t AvailableMemory() { return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

absl::Status ModelBench::MakeEngines(const std::string& budget, int64_t rows, VariantGroup* group) {
  int64_t available = AvailableMemory();
  if (device_ != nullptr) {
    MOERT_ASSIGN_OR_RETURN(available, device_->FreeBytes());
  }
  const int64_t limit = o_.memory > 0 ? o_.memory : available / 10 * 9;
  int64_t held = 0;
  for (const StrategyChoice& choice : strategies_) {
    Variant& v = group->variants.emplace_back();
    v.strategy = choice.spec;
    v.budget = choice.budget;
    if (absl::StrContains(choice.spec, kInherits)) {
      if (group->variants.size() < 2) {
        return absl::InvalidArgumentError("--strategy: hot=before has none in front of it");
      }
      continue;
    }
    EngineOptions options = engine_options_;
    options.strategy = choice.spec;
    options.max_tokens_per_forward = rows;
    MOERT_ASSIGN_OR_RETURN(options.budget,
                           ParseBudget(choice.budget.empty() ? budget : choice.budget));
    const absl::StatusOr<MemoryPlan> plan = Engine::Plan(*subject_.experts(), options);
    if (!plan.ok()) {
      if (strategies_.size() == 1) return plan.status();
      v.refused = std::string(plan.status().message());
      continue;
    }
    held += plan->fixed_bytes() + plan->pool_bytes();
    if (o_.clock == "wall" && held > limit) {
      return absl::InvalidArgumentError(fmt::format(
          "the strategies' engines hold {} together, {} may be held: fewer strategies, layers or a "
          "smaller --budget (--memory sets the limit)",
          util::BytesText(held), util::BytesText(limit)));
    }
    if (!o_.trace.empty() && !traced_) {
      TraceHeader header = MakeTraceHeader(*subject_.experts(), rows);
      header.strategy = choice.spec;
      header.clock = o_.clock;
      MOERT_ASSIGN_OR_RETURN(options.trace, CreateTrace(o_.trace, header, Existing::kReplace));
      traced_ = true;
    }
    MOERT_ASSIGN_OR_RETURN(v.engine, Engine::Create(subject_.experts(), options));
  }
  return absl::OkStatus();
}

/// Experts that an engine holds in its best version, as the strategies' key "hot" takes them.
absl::StatusOr<std::string> HighExpertsOf(Engine* engine) {
  std::string hot;
  for (int l = 0; l < engine->model().num_layers(); ++l) {
    MOERT_ASSIGN_OR_RETURN(const std::vector<Residency> states, engine->ResidencyOf(l));
    if (l > 0) hot += '/';
    bool first = true;
    for (size_t e = 0; e < states.size(); ++e) {
      if (states[e] != Residency::kHigh) continue;
      hot += fmt::format("{}{}", first ? "" : "-", e);
      first = false;
    }
  }
  return hot;
}

absl::Status ModelBench::Inherit(const std::string& budget, int64_t rows,
                                 std::vector<Variant>* variants) {
  Engine* before = nullptr;  // that warmed up
  std::string hot;
  for (Variant& v : *variants) {
    if (!absl::StrContains(v.strategy, kInherits)) {
      before = v.engine.get();
      continue;
    }
    if (before == nullptr) {
      v.refused = "what it begins with is of a strategy that was refused";
      continue;
    }
    MOERT_ASSIGN_OR_RETURN(hot, HighExpertsOf(before));
    EngineOptions options = engine_options_;
    options.strategy = absl::StrReplaceAll(v.strategy, {{kInherits, absl::StrCat("hot=", hot)}});
    options.max_tokens_per_forward = rows;
    MOERT_ASSIGN_OR_RETURN(options.budget, ParseBudget(v.budget.empty() ? budget : v.budget));
    MOERT_ASSIGN_OR_RETURN(v.engine, Engine::Create(subject_.experts(), options));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StepRunner>> ModelBench::MakeRunner(int64_t rows) {
  if (device_ == nullptr) return MakeHostRunner(attention_.get(), AttentionNs(rows));
  DeviceRunOptions options;
  options.attention_bytes = AttentionBytes(rows);
  options.graph = o_.graph;
  options.layer_times = o_.layer_times;
  return device_->MakeRunner(options);
}

absl::StatusOr<double> ModelBench::TransferMs() const {
  const int64_t bytes = subject_.experts()->layout(0, 0, 0).bytes;
  if (o_.link_gbps > 0) return 1e-6 * static_cast<double>(bytes) / o_.link_gbps;
  if (device_ != nullptr) return device_->CopyMs(bytes);
  if (o_.clock == "virtual") {
    return 1e-6 * static_cast<double>(engine_options_.profile.TransferNs(bytes));
  }
  util::AlignedBuffer buffer;
  MOERT_RETURN_IF_ERROR(buffer.Reset(util::RoundUp(bytes, kRecordAlignment)));
  std::vector<double> ms;
  for (int e = 0; e < std::min(9, subject_.shape().spec.layers.front().num_experts); ++e) {
    const auto begin = std::chrono::steady_clock::now();
    MOERT_RETURN_IF_ERROR(
        subject_.experts()->ReadRecord(0, e, 0, absl::MakeSpan(buffer.data(), buffer.size())));
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                     .count());
  }
  return SpreadOf(ms).median;
}

absl::StatusOr<VariantGroup> ModelBench::RunGroup(const std::string& budget, int64_t batch) {
  const int64_t rows = subject_.Rows(batch);
  VariantGroup group;
  group.budget = budget;
  group.batch = subject_.recorded() ? rows : batch;
  MOERT_RETURN_IF_ERROR(MakeEngines(budget, rows, &group));
  MOERT_ASSIGN_OR_RETURN(group.transfer_ms, TransferMs());
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<StepSource> steps,
                         subject_.Steps(batch, makers_.get()));
  BenchRun run;
  run.warm_steps = o_.warm;
  run.repetitions = o_.repeats;
  run.steps = o_.steps;
  run.warmed = [&](std::vector<Variant>* variants) { return Inherit(budget, rows, variants); };
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner, MakeRunner(rows));
  Progress progress(fmt::format("budget {}, batch {}: steps", budget, batch), !o_.quiet);
  run.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  MOERT_RETURN_IF_ERROR(RunVariants(steps.get(), runner.get(), run, &group.variants));
  return group;
}

json ModelBench::Describe() const {
  const Shape& shape = subject_.shape();
  return json{{"bench", o_.bench},
              {"commit", BuildCommit()},
              {"machine", DescribeMachine()},
              {"seed", o_.seed},
              {"shape",
               {{"name", shape.name},
                {"model", shape.model},
                {"layers", shape.spec.num_layers()},
                {"experts", shape.spec.layers.front().num_experts},
                {"top_k", shape.spec.layers.front().routing.top_k},
                {"expert_bytes", subject_.experts()->layout(0, 0, 0).bytes}}},
              {"workload", o_.workload},
              {"schemes", o_.schemes},
              {"backend", o_.backend},
              {"device", device_ != nullptr ? device_->Describe() : json(nullptr)},
              {"context", device_ != nullptr ? json(o_.context) : json(nullptr)},
              {"source", o_.directory.empty() ? "memory" : "disk"},
              {"host_budget", engine_options_.host_budget},
              {"clock", o_.clock},
              {"profile", o_.profile},
              {"threads", o_.threads},
              {"io_threads", o_.io_threads},
              {"kernels", o_.kernels},
              {"link_gbps", o_.link_gbps},
              {"attention_us",
               1e-3 * static_cast<double>(AttentionNs(subject_.Plan(o_.batch.front()).rows()))},
              {"read_gbps", 1e-9 * read_bytes_per_s_},
              {"prompt", o_.prefill() ? json(o_.prompt) : json(nullptr)},
              {"warm_steps", o_.warm},
              {"steps", o_.steps},
              {"repeats", o_.repeats}};
}

absl::StatusOr<json> ModelBench::Run(const std::string& command) {
  json groups = json::array();
  for (const int batch : o_.batch) {
    // Bounds of the same steps.
    MOERT_ASSIGN_OR_RETURN(const RoutingHistory history, subject_.History(batch));
    for (const std::string& budget : budgets_) {
      MOERT_ASSIGN_OR_RETURN(VariantGroup group, RunGroup(budget, batch));
      group.history = &history;
      if (!o_.quiet) PrintGroup(group);
      groups.push_back(ToJson(group));
      if (!o_.costs.empty()) {
        MOERT_ASSIGN_OR_RETURN(groups.back()["predicted"],
                               PredictVersions(o_.costs, *subject_.experts(), history));
      }
    }
  }
  json figures = Describe();
  figures["command"] = command;
  figures["groups"] = std::move(groups);
  return figures;
}

absl::Status RunModelBench(const ModelBenchOptions& options, const std::string& command) {
  ModelBench bench(options);
  MOERT_RETURN_IF_ERROR(bench.Open());
  if (!options.quiet) {
    Print("{}\n", command);
    Print("* a bound: misses of Belady's caches, known a layer ahead\n\n");
  }
  MOERT_ASSIGN_OR_RETURN(const json result, bench.Run(command));
  return WriteFigures(options.json, options.plot, result);
}

int Main(ModelBenchOptions options, const char* summary, int argc, const char* const* argv) {
  const std::string name = "moert-bench " + options.bench;
  ArgParser parser(name, summary);
  AddModelBenchFlags(&parser, &options);
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::Status status = RunModelBench(options, name + " " + CommandLine(argc, argv));
  return status.ok() ? kExitOk : ReportError(name, status);
}

}  // namespace

int BenchDecode(int argc, const char* const* argv) {
  ModelBenchOptions options;
  options.bench = "decode";
  return Main(options, "decode steps of a whole model, attention emulated", argc, argv);
}

int BenchPrefill(int argc, const char* const* argv) {
  ModelBenchOptions options;
  options.bench = "prefill";
  options.steps = 2;
  options.warm = 2;
  return Main(options, "prefill steps, each of new prompts, attention emulated", argc, argv);
}

int BenchLayer(int argc, const char* const* argv) {
  ModelBenchOptions options;
  options.bench = "layer";
  options.strategy = "resident";
  options.budget = "100%";
  options.workload = "mixed";
  options.warm = 4;
  options.steps = 8;
  return Main(options, "layer calls with nothing between them", argc, argv);
}

}  // namespace moert::cli
