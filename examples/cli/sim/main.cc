// moert-sim: replays a routing trace through the library's own strategies, store and planners on a
// virtual clock, for budgets, links and machines that are not here.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "cli/common/any_trace.h"
#include "cli/common/args.h"
#include "cli/common/budget_flag.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/promise_flag.h"
#include "cli/common/run_report.h"
#include "cli/common/strategy_names.h"
#include "cli/common/tool.h"
#include "cli/workload/oracles.h"
#include "host/utf8.h"
#include "moert/engine.h"
#include "moert/parallel/parallel_replay.h"
#include "moert/parallel/placement.h"
#include "moert/parallel/shard.h"
#include "moert/tools/replay.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kCommand[] = "moert-sim";

struct Options {
  std::string trace;
  std::string model;
  std::string profile = "reference";
  std::string strategy = "on-demand";
  std::string promise;  // empty: as the strategy says
  std::string budget = "100%";
  std::string host_budget;  // empty: RAM holds all
  double link_gbps = 0;
  std::string times = "profile";
  int64_t steps = 0;
  int64_t warm = 0;
  double attention_us = 0;
  bool oracles = false;
  bool by_layer = false;
  int64_t max_tokens = 0;
  std::string json;
  bool quiet = false;
  int64_t gpus = 1;
  int64_t nodes = 1;
  int64_t all_reduce_tokens = 64;
  std::string placement = "dealt";
  int64_t copies = 0;
};

absl::StatusOr<EngineOptions> MakeEngineOptions(const Options& o, const TraceHeader& header) {
  if (!std::isfinite(o.link_gbps) || o.link_gbps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--link-gbps: ", o.link_gbps, " is not a rate; 0 or more"));
  }
  if (!(o.attention_us >= 0 && o.attention_us <= 1e9)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--attention-us: ", o.attention_us, " is not between 0 and 1e9"));
  }
  EngineOptions e;
  const absl::StatusOr<Budget> budget = ParseBudget(o.budget);
  if (!budget.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--budget: ", budget.status().message()));
  }
  e.budget = *budget;
  if (!o.host_budget.empty()) {
    MOERT_ASSIGN_OR_RETURN(e.host_budget,
                           ParseHostBudget(o.host_budget, ExpertBytes(*MakeSizesSource(header))));
  }
  e.strategy = o.strategy;
  MOERT_RETURN_IF_ERROR(SetPromise(o.promise, &e));
  e.clock = ClockKind::kVirtual;
  MOERT_ASSIGN_OR_RETURN(e.profile, LoadProfile(o.profile));
  e.link_gbps = o.link_gbps;
  e.simulate = true;
  e.threads = 1;
  e.max_tokens_per_forward = std::max(o.max_tokens, header.max_tokens);
  return e;
}

struct Opened {
  std::unique_ptr<TraceReader> trace;
  std::unique_ptr<Engine> engine;
};

absl::StatusOr<Opened> Open(const Options& options) {
  Opened opened;
  MOERT_ASSIGN_OR_RETURN(opened.trace, OpenAnyTrace(options.trace, options.model));
  const TraceHeader& header = opened.trace->header();
  MOERT_ASSIGN_OR_RETURN(EngineOptions engine_options, MakeEngineOptions(options, header));
  const auto ranks = static_cast<int>(options.gpus * options.nodes);
  if (ranks > 1) engine_options.shard = ReplayShard(header.model, 0, ranks);
  MOERT_ASSIGN_OR_RETURN(opened.engine, Engine::Create(MakeSizesSource(header), engine_options));
  return opened;
}

/// For each layer's experts, the calls of the warm-up steps that used them.
absl::StatusOr<std::vector<std::vector<double>>> CallsOfExperts(const Options& options,
                                                                TraceReader* trace) {
  const MoeModelSpec& model = trace->header().model;
  std::vector<std::vector<double>> loads;
  for (const MoeLayerSpec& layer : model.layers) {
    loads.emplace_back(static_cast<size_t>(layer.num_experts));
  }
  int64_t steps = 0, last = -1;
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const TraceCall* const call, trace->Next());
    if (call == nullptr) break;
    if (call->step != last && steps++ == options.warm) break;
    last = call->step;
    const std::set<int32_t> used(call->ids.begin(), call->ids.end());
    for (const int32_t e : used) {
      if (e >= 0) ++loads[static_cast<size_t>(call->layer)][static_cast<size_t>(e)];
    }
  }
  MOERT_RETURN_IF_ERROR(trace->Rewind());
  return loads;
}

absl::Status PlaceByUse(const Options& options, TraceReader* trace,
                        ParallelReplayOptions* parallel) {
  MOERT_ASSIGN_OR_RETURN(const auto loads, CallsOfExperts(options, trace));
  const MoeModelSpec& model = trace->header().model;
  const int ranks = parallel->gpus * parallel->nodes;
  if (options.copies == 0) {
    MOERT_ASSIGN_OR_RETURN(parallel->shards, PlaceExperts(model, loads, ranks));
    return absl::OkStatus();
  }
  int most = 0;  // experts of a layer
  for (const MoeLayerSpec& layer : model.layers) most = std::max(most, layer.num_experts);
  ReplicaOptions replicas;
  replicas.capacity.assign(static_cast<size_t>(ranks),
                           (most + ranks - 1) / ranks + static_cast<int>(options.copies));
  MOERT_ASSIGN_OR_RETURN(parallel->placement, PlaceReplicas(model, loads, ranks, replicas));
  return absl::OkStatus();
}

/// On several GPUs; fills what is reported of the group beside its steps.
absl::StatusOr<ReplayResult> RunParallel(const Options& options, Opened& opened,
                                         const ReplayOptions& replay,
                                         nlohmann::ordered_json* group) {
  const TraceHeader& header = opened.trace->header();
  MOERT_ASSIGN_OR_RETURN(const EngineOptions engine, MakeEngineOptions(options, header));
  ParallelReplayOptions parallel;
  parallel.replay = replay;
  parallel.gpus = static_cast<int>(options.gpus);
  parallel.nodes = static_cast<int>(options.nodes);
  parallel.all_reduce_tokens = options.all_reduce_tokens;
  MOERT_ASSIGN_OR_RETURN(parallel.links, LoadPeerLinks(options.profile));
  if (options.placement == "popular") {
    MOERT_RETURN_IF_ERROR(PlaceByUse(options, opened.trace.get(), &parallel));
  }
  MOERT_ASSIGN_OR_RETURN(
      const ParallelReplayResult result,
      ReplayParallel(opened.trace.get(), MakeSizesSource(header), engine, parallel));
  nlohmann::ordered_json hits = nlohmann::ordered_json::array();
  for (const EngineStats& rank : result.ranks) hits.push_back(rank.hit_ratio());
  *group = {{"gpus", options.gpus},
            {"nodes", options.nodes},
            {"exchange_ms", result.exchange_ms},
            {"compute_ms", result.compute_ms},
            {"imbalance", result.imbalance},
            {"hit_ratio_by_rank", std::move(hits)}};
  if (!options.quiet) {
    Print(
        "\n  {} x {} GPUs: exchange {:.1f} ms, the slowest rank's layers {:.1f} ms, {:.2f} times "
        "the mean rank's\n  (statistics below are rank 0's)\n",
        options.nodes, options.gpus, result.exchange_ms, result.compute_ms, result.imbalance);
  }
  return result.whole;
}

absl::Status Run(const Options& options, Opened& opened) {
  ReplayOptions replay;
  replay.recorded_times = options.times == "recorded";
  replay.max_steps = options.steps;
  replay.host_ns = std::llround(1e3 * options.attention_us);
  replay.warm_steps = options.warm;
  absl::StatusOr<ReplayResult> result;
  nlohmann::ordered_json group;
  {
    Progress progress("steps", !options.quiet);
    replay.progress = [&](int64_t done) { progress.Update(done, options.steps); };
    result = options.gpus * options.nodes == 1
                 ? Replay(opened.trace.get(), opened.engine.get(), replay)
                 : RunParallel(options, opened, replay, &group);
  }
  MOERT_RETURN_IF_ERROR(result.status());
  RunReport report;
  if (!group.is_null()) report.extra["group"] = std::move(group);
  report.command = "sim";
  report.backend = "sim";
  report.model = host::ToValidUtf8(opened.trace->header().source);
  report.virtual_clock = true;
  report.decode_ms = result->decode_ms;
  report.step_tokens = static_cast<double>(result->decode_tokens) /
                       static_cast<double>(std::max<size_t>(1, report.decode_ms.size()));
  report.stats = result->stats;
  if (!result->prefill_ms.empty()) {
    report.ttft_ms = std::accumulate(result->prefill_ms.begin(), result->prefill_ms.end(), 0.0) /
                     static_cast<double>(result->prefill_ms.size());
  }
  if (options.by_layer) {
    nlohmann::ordered_json recall = nlohmann::ordered_json::array();
    for (const LayerRecall& layer : result->recall) {
      recall.push_back({{"predicted", layer.predicted},
                        {"recalled", layer.recalled},
                        {"in_window", layer.in_window}});
    }
    report.extra["recall_by_layer"] = std::move(recall);
  }
  if (options.oracles) {
    MOERT_ASSIGN_OR_RETURN(const RoutingHistory history,
                           RoutingHistory::Read(opened.trace.get(), options.warm, options.steps));
    const Oracles oracles = ComputeOracles(history, opened.engine->memory().slots);
    report.extra["oracles"] = ToJson(oracles);
    if (!options.quiet) {
      Print(
          "\n  bounds       Belady {:.1f} % a layer, {:.1f} % global; LRU {:.1f} %; best "
          "high set {:.1f} %\n",
          100 * oracles.belady_layer, 100 * oracles.belady_global, 100 * oracles.lru,
          100 * oracles.high_set);
    }
  }
  return WriteReport(report, *opened.engine, options.json, options.quiet);
}

int Main(int argc, const char* const* argv) {
  Options o;
  ArgParser parser(kCommand,
                   "Replays a routing trace on a virtual clock. Prefill steps are reported as "
                   "ttft_ms (mean), decode steps as tpot_ms.");
  parser.AddString("trace", &o.trace, "a trace of moert-run or moert-bench, or recorded routing");
  parser.Require("trace");
  parser.AddString("model", &o.model, "checkpoint of recorded routing (*.safetensors)");
  parser.AddString("profile", &o.profile, "hardware profile: reference, or a file of moert-bench");
  parser.AddString("strategy", &o.strategy, "offloading strategy, name[:key=value,...]");
  parser.Suggest("strategy", StrategyNames());
  AddPromise(&parser, &o.promise);
  parser.AddString("budget", &o.budget,
                   "memory for experts: 512MiB, 8GiB (everything), or 25% of the experts");
  parser.AddString("host-budget", &o.host_budget,
                   "what RAM holds, a size or 90% of the experts; others come from a file at the "
                   "profile's file_bytes_per_s (default: all)");
  parser.AddDouble("link-gbps", &o.link_gbps, "rate of transfers, GB/s, in place of the profile's");
  parser.AddChoice("times", &o.times, {"profile", "recorded"},
                   "what computing takes: the profile's costs, or what the trace recorded");
  parser.AddInt64("steps", &o.steps, "replays only the first steps", 1);
  parser.AddInt64("warm", &o.warm, "so many first steps are replayed and not counted", 0);
  parser.AddDouble("attention-us", &o.attention_us,
                   "what the host does before every layer call, beside what a profile charges");
  parser.AddSwitch("oracles", &o.oracles, "also what the best decisions in hindsight would reach");
  parser.AddSwitch("by-layer", &o.by_layer, "also each layer's share of predicted experts");
  parser.AddInt64("max-tokens", &o.max_tokens,
                  "rows the budget's workspace is sized for, if more than the trace has", 1,
                  1 << 20);
  parser.AddInt64("gpus", &o.gpus, "GPUs of a node, over which the experts are dealt", 1, 1024);
  parser.AddInt64("nodes", &o.nodes, "nodes of so many GPUs; rates: the profile's peer_*, node_*",
                  1, 1024);
  parser.AddChoice("placement", &o.placement, {"dealt", "popular"},
                   "which GPU owns which experts: dealt out in turn, or balanced by their use in "
                   "the --warm steps");
  parser.AddInt64("copies", &o.copies,
                  "--placement popular: experts of each layer that a GPU owns beside its share, "
                  "copies of the most used",
                  0, 1 << 20);
  parser.AddInt64("all-reduce-tokens", &o.all_reduce_tokens,
                  "longer calls send rows to the ranks that own their experts, in place of an "
                  "all-reduce",
                  0, 1 << 20);
  parser.AddJson(&o.json);
  parser.AddSwitch("quiet", &o.quiet, "no statistics table, no progress");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  if (o.placement == "popular" && o.warm == 0) {
    return ReportError("moert-sim", absl::InvalidArgumentError(
                                        "--placement popular: counts use in the --warm steps"));
  }
  absl::StatusOr<Opened> opened = Open(o);
  if (!opened.ok()) {
    ReportError(kCommand, opened.status());
    return opened.status().code() == absl::StatusCode::kInternal ? kExitFailure : kExitUsage;
  }
  const absl::Status status = Run(o, *opened);
  return status.ok() ? kExitOk : ReportError(kCommand, status);
}

constexpr Command kCommands[] = {{"", "", Main}};

}  // namespace
}  // namespace moert::cli

int main(int argc, char** argv) {
  return moert::cli::RunTool(
      {"moert-sim", "replays a recorded run for other budgets, links and machines",
       moert::cli::kCommands},
      argc, argv);
}
