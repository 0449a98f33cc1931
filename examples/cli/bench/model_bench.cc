// moert-bench decode, prefill, layer: strategies against each other on synthetic experts of a
// published shape, with hindsight bounds beside them.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/bench/commit.h"
#include "cli/bench/device_bench.h"
#include "cli/bench/engine_bench.h"
#include "cli/bench/model_options.h"
#include "cli/bench/model_report.h"
#include "cli/common/any_trace.h"
#include "cli/common/budget_flag.h"
#include "cli/common/output.h"
#include "cli/common/plot.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/workload/synthetic_experts.h"
#include "moert/default_thread_pool.h"
#include "moert/offline/cost_table.h"
#include "util/aligned_buffer.h"
#include "util/bytes_text.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

constexpr char kTracePrefix[] = "trace:";
// A variant that begins when the warm-up ends.
constexpr char kInherits[] = "hot=before";
// Records that devices copy from: more than the caches of a CPU hold.
constexpr int64_t kPinnedBytes = int64_t{1} << 30;

/// What is measured: experts, and where the steps come from.
class ModelBench {
 public:
  explicit ModelBench(const ModelBenchOptions& options) : o_(options) {}

  absl::Status Open();
  absl::StatusOr<json> Run(const std::string& command);

 private:
  absl::Status OpenRecorded(const std::string& path);
  absl::StatusOr<VariantGroup> RunGroup(const std::string& budget, int64_t batch);
  absl::Status MakeEngines(const std::string& budget, int64_t rows, VariantGroup* group);
  absl::Status Inherit(const std::string& budget, int64_t rows, std::vector<Variant>* variants);
  absl::StatusOr<double> TransferMs() const;
  absl::StatusOr<std::unique_ptr<StepRunner>> MakeRunner(int64_t rows);
  StepPlan Plan(int64_t batch) const;
  absl::StatusOr<json> Predict(const RoutingHistory& history) const;
  int64_t AttentionBytes(int64_t rows) const;
  int64_t AttentionNs(int64_t rows) const;

  const ModelBenchOptions& o_;
  Shape shape_;
  std::unique_ptr<TraceReader> trace_;  // null for a made-up workload
  std::optional<RecordedGates> gates_;  // of a trace over the experts of another shape
  std::shared_ptr<const ExpertSource> experts_;
  std::unique_ptr<DeviceBench> device_;
  std::unique_ptr<AttentionLoop> attention_;
  std::unique_ptr<ThreadPool> makers_;  // of hidden states
  double read_bytes_per_s_ = 0;
  EngineOptions engine_options_;
  std::vector<StrategyChoice> strategies_;
  std::vector<std::string> budgets_;
  bool traced_ = false;
};

/// A trace in its own shape, or its routing over experts as wide as another shape's.
absl::Status ModelBench::OpenRecorded(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(trace_, OpenTrace(path));
  const MoeModelSpec& recorded = trace_->header().model;
  if (o_.synthetic.empty()) {
    shape_.name = "trace";
    shape_.spec = recorded;
    const MoeLayerSpec& layer = shape_.spec.layers.front();
    shape_.attention_parameters = 4 * layer.hidden * layer.hidden;
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(shape_, ParseShape(o_.synthetic));
  const MoeLayerSpec wide = shape_.spec.layers.front();
  shape_.spec = recorded;
  for (MoeLayerSpec& layer : shape_.spec.layers) {
    layer.hidden = wide.hidden;
    layer.intermediate = wide.intermediate;
    layer.shared_intermediate = wide.shared_intermediate;
    layer.shared_gate = wide.shared_gate;
  }
  MOERT_ASSIGN_OR_RETURN(gates_, RecordedGates::Create(shape_.spec));
  return absl::OkStatus();
}

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
  const auto seed = static_cast<uint64_t>(o_.seed);
  std::string workload = o_.workload;
  if (absl::StartsWith(workload, kTracePrefix)) {
    MOERT_RETURN_IF_ERROR(OpenRecorded(workload.substr(sizeof(kTracePrefix) - 1)));
    workload = "uniform";  // gates only; the routing is the trace's
  } else if (o_.synthetic.empty()) {
    return absl::InvalidArgumentError("give --synthetic SHAPE[:layers], or --workload trace:FILE");
  } else {
    MOERT_ASSIGN_OR_RETURN(shape_, ParseShape(o_.synthetic));
  }
  MOERT_ASSIGN_OR_RETURN(const Workload process,
                         Workload::Create(workload, shape_.spec, shape_.common_share, seed));
  SyntheticOptions synthetic;
  synthetic.schemes = absl::StrSplit(o_.schemes, ',');
  synthetic.mixed = o_.mixed;
  if (!o_.mixed_schemes.empty()) synthetic.mixed_schemes = absl::StrSplit(o_.mixed_schemes, ',');
  synthetic.directory = o_.directory;
  if (gates_.has_value()) synthetic.gate = [this](int layer) { return gates_->Gate(layer); };
  if (device_ != nullptr) {
    synthetic.memory_bytes = kPinnedBytes;
    synthetic.pin = [this](std::byte* data, int64_t bytes) { return device_->Pin(data, bytes); };
  }
  {
    Progress progress("writing experts", !o_.quiet);
    synthetic.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
    MOERT_ASSIGN_OR_RETURN(experts_, MakeSyntheticExperts(shape_, process, seed, synthetic));
  }
  if (device_ != nullptr) {
    read_bytes_per_s_ = device_->ReadBytesPerSecond();
  } else if (o_.clock == "wall") {
    MOERT_ASSIGN_OR_RETURN(attention_, AttentionLoop::Create(o_.threads));
    read_bytes_per_s_ = attention_->ReadBytesPerSecond();
  }
  return absl::OkStatus();
}

StepPlan ModelBench::Plan(int64_t batch) const {
  StepPlan plan;
  plan.phase = o_.prefill() ? Phase::kPrefill : Phase::kDecode;
  plan.batch = batch;
  plan.prompt_tokens = o_.prompt;
  plan.steps = o_.warm + o_.repeats * o_.steps;
  return plan;
}

int64_t ModelBench::AttentionBytes(int64_t rows) const {
  if (device_ == nullptr || o_.bench == "layer") return 0;
  if (o_.attention_us >= 0) return static_cast<int64_t>(1e-6 * o_.attention_us * read_bytes_per_s_);
  // Weights once, until arithmetic takes longer: from some 128 rows on. The cache of each request;
  // a prompt's tokens read it together.
  const double weights = 2 * static_cast<double>(shape_.attention_parameters) *
                         std::max(1.0, static_cast<double>(rows) / 128);
  const int64_t requests = o_.prefill() ? rows / o_.prompt : rows;
  return static_cast<int64_t>(weights) + requests * o_.context * shape_.kv_bytes;
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
  const double bytes = 2 * static_cast<double>(shape_.attention_parameters);
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
    const absl::StatusOr<MemoryPlan> plan = Engine::Plan(*experts_, options);
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
      TraceHeader header = MakeTraceHeader(*experts_, rows);
      header.strategy = choice.spec;
      header.clock = o_.clock;
      MOERT_ASSIGN_OR_RETURN(options.trace, CreateTrace(o_.trace, header));
      traced_ = true;
    }
    MOERT_ASSIGN_OR_RETURN(v.engine, Engine::Create(experts_, options));
  }
  return absl::OkStatus();
}

/// What an engine holds in its best version, as the strategies' key "hot" takes it.
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
    MOERT_ASSIGN_OR_RETURN(v.engine, Engine::Create(experts_, options));
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
  const int64_t bytes = experts_->layout(0, 0, 0).bytes;
  if (o_.link_gbps > 0) return 1e-6 * static_cast<double>(bytes) / o_.link_gbps;
  if (device_ != nullptr) return device_->CopyMs(bytes);
  if (o_.clock == "virtual") {
    return 1e-6 * static_cast<double>(engine_options_.profile.TransferNs(bytes));
  }
  util::AlignedBuffer buffer;
  MOERT_RETURN_IF_ERROR(buffer.Reset(util::RoundUp(bytes, kRecordAlignment)));
  std::vector<double> ms;
  for (int e = 0; e < std::min(9, shape_.spec.layers.front().num_experts); ++e) {
    const auto begin = std::chrono::steady_clock::now();
    MOERT_RETURN_IF_ERROR(
        experts_->ReadRecord(0, e, 0, absl::MakeSpan(buffer.data(), buffer.size())));
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                     .count());
  }
  return SpreadOf(ms).median;
}

absl::StatusOr<VariantGroup> ModelBench::RunGroup(const std::string& budget, int64_t batch) {
  const StepPlan plan = Plan(batch);
  const int64_t rows = trace_ != nullptr ? trace_->header().max_tokens : plan.rows();
  VariantGroup group;
  group.budget = budget;
  group.batch = batch;
  MOERT_RETURN_IF_ERROR(MakeEngines(budget, rows, &group));
  MOERT_ASSIGN_OR_RETURN(group.transfer_ms, TransferMs());
  std::unique_ptr<StepSource> steps;
  const auto seed = static_cast<uint64_t>(o_.seed);
  if (trace_ != nullptr) {
    MOERT_RETURN_IF_ERROR(trace_->Rewind());
    group.batch = rows;
    steps = gates_.has_value() ? MakeRecordedSteps(trace_.get(), &*gates_)
                               : MakeTraceSteps(trace_.get());
  } else {
    MOERT_ASSIGN_OR_RETURN(Workload process,
                           Workload::Create(o_.workload, shape_.spec, shape_.common_share, seed));
    steps = MakeWorkloadSteps(std::move(process), shape_.spec, plan, makers_.get());
  }
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

/// Of every version: its stored bits, and what the cost table makes of it (MxMoE's T) for as many
/// tokens as each expert got on average.
absl::StatusOr<json> ModelBench::Predict(const RoutingHistory& history) const {
  MOERT_ASSIGN_OR_RETURN(const CostTable costs, LoadCostTable(o_.costs, Env::Default()));
  std::vector<std::vector<double>> tokens;  // [layer][expert]
  for (const MoeLayerSpec& layer : shape_.spec.layers) tokens.emplace_back(layer.num_experts, 0.0);
  for (const RoutingHistory::Call& call : history.calls()) {
    for (size_t i = 0; call.counted && i < call.experts.size(); ++i) {
      tokens[call.layer][call.experts[i]] +=
          static_cast<double>(call.tokens[i]) / static_cast<double>(history.counted_steps());
    }
  }
  json versions = json::object();
  for (int v = 0; v < experts_->num_versions(); ++v) {
    double seconds = 0, bytes = 0, weights = 0;
    for (int l = 0; l < shape_.spec.num_layers(); ++l) {
      for (size_t e = 0; e < tokens[l].size(); ++e) {
        const RecordLayout& layout = experts_->layout(l, static_cast<int>(e), v);
        for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
          const int64_t stored = m->weight_bytes + m->scale_bytes;
          MOERT_ASSIGN_OR_RETURN(const double s, costs.Seconds(m->scheme, stored, tokens[l][e]));
          seconds += s;
          bytes += static_cast<double>(stored);
          weights += static_cast<double>(m->rows * m->k);
        }
      }
    }
    versions[std::string(experts_->version_name(v))] = {
        {"stored_bits", 8 * bytes / weights},
        {"bytes_a_layer", bytes / shape_.spec.num_layers()},
        {"predicted_us_a_layer", 1e6 * seconds / shape_.spec.num_layers()}};
  }
  return versions;
}

absl::StatusOr<json> ModelBench::Run(const std::string& command) {
  json groups = json::array();
  for (const int batch : o_.batch) {
    // Bounds of the same steps. Hidden states and logits of a workload give the same routing.
    std::unique_ptr<TraceReader> made_up;
    if (trace_ == nullptr) {
      MOERT_ASSIGN_OR_RETURN(
          made_up,
          MakeWorkloadTrace(shape_, o_.workload, static_cast<uint64_t>(o_.seed), Plan(batch)));
    }
    MOERT_ASSIGN_OR_RETURN(const RoutingHistory history,
                           RoutingHistory::Read(trace_ != nullptr ? trace_.get() : made_up.get(),
                                                o_.warm, o_.warm + o_.repeats * o_.steps));
    for (const std::string& budget : budgets_) {
      MOERT_ASSIGN_OR_RETURN(VariantGroup group, RunGroup(budget, batch));
      group.history = &history;
      if (!o_.quiet) PrintGroup(group);
      groups.push_back(ToJson(group));
      if (!o_.costs.empty()) {
        MOERT_ASSIGN_OR_RETURN(groups.back()["predicted"], Predict(history));
      }
    }
  }
  const StepPlan plan = Plan(o_.batch.front());
  return json{{"command", command},
              {"bench", o_.bench},
              {"commit", BuildCommit()},
              {"machine", DescribeMachine()},
              {"seed", o_.seed},
              {"shape",
               {{"name", shape_.name},
                {"model", shape_.model},
                {"layers", shape_.spec.num_layers()},
                {"experts", shape_.spec.layers.front().num_experts},
                {"top_k", shape_.spec.layers.front().routing.top_k},
                {"expert_bytes", experts_->layout(0, 0, 0).bytes}}},
              {"workload", o_.workload},
              {"schemes", o_.schemes},
              {"backend", o_.backend},
              {"device", device_ != nullptr ? device_->Describe() : json(nullptr)},
              {"context", device_ != nullptr ? json(o_.context) : json(nullptr)},
              {"source", o_.directory.empty() ? "memory" : "disk"},
              {"clock", o_.clock},
              {"profile", o_.profile},
              {"threads", o_.threads},
              {"io_threads", o_.io_threads},
              {"kernels", o_.kernels},
              {"link_gbps", o_.link_gbps},
              {"attention_us", 1e-3 * static_cast<double>(AttentionNs(plan.rows()))},
              {"read_gbps", 1e-9 * read_bytes_per_s_},
              {"prompt", o_.prefill() ? json(o_.prompt) : json(nullptr)},
              {"warm_steps", o_.warm},
              {"steps", o_.steps},
              {"repeats", o_.repeats},
              {"groups", std::move(groups)}};
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
