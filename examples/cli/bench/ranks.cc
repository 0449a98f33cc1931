// moert-bench ranks: a model's experts dealt out over the GPUs of a machine, against one of them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>

#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/bench/commit.h"
#include "cli/bench/rank_bench.h"
#include "cli/bench/rank_load.h"
#include "cli/common/args.h"
#include "cli/common/budget_flag.h"
#include "cli/common/output.h"
#include "cli/common/report.h"
#include "cli/workload/synthetic_experts.h"
#include "moert/parallel/peer_tier.h"
#include "moert/parallel/shard.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

// Bytes of records that devices copy from: more than the caches of a CPU hold.
constexpr int64_t kPinnedBytes = int64_t{1} << 30;

constexpr absl::string_view kSplits[] = {"auto", "none", "rows", "experts"};  // by StepSplit

struct Options {
  std::string synthetic = "qwen3-30b:12";
  std::string workload = "steady";
  std::string backend = "cuda";
  std::vector<int> ranks = {2};
  std::string placement = "ranges";
  bool copies = false, eager = false, no_peer_access = false;
  std::string budget = "100%,25%";
  std::string strategy = "on-demand";
  std::string scheme = "bf16";
  std::vector<int> batch = {1, 8, 64, 256};
  std::vector<int> prompt = {8192};
  std::string tokens = "replicated", rows = "f32";
  int64_t bf16_rows = 0;
  std::string split = "auto";
  int64_t steps = 32, warm = 32, prompt_steps = 6;
  int threads = 0;
  int64_t seed = 1;
  std::string json;
  bool quiet = false;
};

class RankBench {
 public:
  explicit RankBench(const Options& options) : o_(options) {}

  absl::StatusOr<json> Run(const std::string& command);

 private:
  absl::StatusOr<RankHosts> Hosts(int ranks, bool alone = false) const {
    return o_.backend == "cuda" ? MakeCudaRanks(ranks, alone) : MakeHostRanks(ranks, alone);
  }
  /// `only`: this split, without exchange; else the one that was asked for.
  absl::StatusOr<RankTimes> Time(const RankLoad& load, const std::string& budget, int ranks,
                                 std::optional<StepSplit> only = {}) const;
  absl::Status MeasureRanks(const RankLoad& load, const std::string& budget, int ranks,
                            double* alone_ms, json* rows) const;
  absl::Status Measure(const RankLoad& load, const std::string& budget, json* rows) const;
  absl::Status MeasureCopies(const RankLoad& load, const std::string& budget, int ranks,
                             json* rows) const;
  void Show(const json& row) const;

  const Options& o_;
  Shape shape_;
  std::shared_ptr<const ExpertSource> experts_;
};

absl::StatusOr<RankTimes> RankBench::Time(const RankLoad& load, const std::string& budget,
                                          int ranks, std::optional<StepSplit> only) const {
  const bool exchange = !only.has_value();
  MOERT_ASSIGN_OR_RETURN(RankHosts hosts, Hosts(ranks));
  RankRun run;
  run.source = experts_;
  if (o_.placement == "popular") {
    MOERT_ASSIGN_OR_RETURN(run.shards, PopularExperts(shape_.spec, load, ranks));
  } else {
    run.shards = ExpertRanges(shape_.spec, ranks);
  }
  run.phase = load.phase;
  run.steps = {load.steps};
  // The time of products alone is the same whosever the tokens are.
  std::vector<std::vector<RoutedStep>> own;
  if (o_.tokens == "own" && ranks > 1 && exchange) {
    if (load.rows % ranks != 0) {
      return absl::InvalidArgumentError(
          fmt::format("{} rows for {} ranks: each has as many", load.rows, ranks));
    }
    own = RowsOfRanks(load, ranks);
    run.steps.assign(own.begin(), own.end());
    run.placement = TokenPlacement::kPerRank;
  }
  run.warm = load.warm;
  run.exchange = exchange;
  run.rows = o_.rows == "bf16" ? DType::kBF16 : DType::kF32;
  const auto* const asked = std::find(std::begin(kSplits), std::end(kSplits), o_.split);
  run.sums = {only.value_or(static_cast<StepSplit>(asked - kSplits)), o_.bf16_rows};
  run.options.backend = o_.backend == "cuda" ? BackendKind::kCuda : BackendKind::kCpu;
  run.options.max_tokens_per_forward = load.rows;
  run.options.threads = o_.threads;
  MOERT_ASSIGN_OR_RETURN(run.options.budget, ParseBudget(budget));
  // A share of the model for each GPU, which holds all of it, or owns a part.
  if (!run.options.budget.bytes.has_value()) {
    run.whole = ranks > 1 && run.options.budget.fraction == 1;
    run.options.budget.fraction = std::min(1.0, run.options.budget.fraction * ranks);
  }
  const bool all = !run.options.budget.bytes.has_value() && run.options.budget.fraction == 1;
  run.options.strategy = all ? "resident" : o_.strategy;
  run.graph = !o_.eager && (load.phase == Phase::kDecode || run.options.strategy == "resident");
  return TimeRanks(run, &hosts);
}

absl::Status RankBench::Measure(const RankLoad& load, const std::string& budget, json* rows) const {
  double alone_ms = 0;  // of one rank
  MOERT_RETURN_IF_ERROR(MeasureRanks(load, budget, 1, &alone_ms, rows));
  for (const int ranks : o_.ranks) {
    if (ranks == 1) continue;
    MOERT_RETURN_IF_ERROR(MeasureRanks(load, budget, ranks, &alone_ms, rows));
  }
  return absl::OkStatus();
}

absl::Status RankBench::MeasureRanks(const RankLoad& load, const std::string& budget, int ranks,
                                     double* alone_ms, json* rows) const {
  MOERT_ASSIGN_OR_RETURN(const RankTimes times, Time(load, budget, ranks));
  const Spread ms = SpreadOf(times.step_ms);
  if (ranks == 1) *alone_ms = ms.median;
  json row = {{"phase", load.phase == Phase::kDecode ? "decode" : "prefill"},
              {"rows", load.rows},
              {"budget", budget},
              {"ranks", ranks},
              {"step_ms", ToJson(ms)},
              {"tokens_per_s", 1e3 * static_cast<double>(load.rows) / ms.median},
              {"speedup", *alone_ms / ms.median},
              {"efficiency", *alone_ms / ms.median / ranks},
              {"hit_ratio", times.hit_ratio},
              {"loaded_bytes_a_step", times.loaded_bytes},
              {"cpu_computed_a_step", times.cpu_computed},
              {"pool_bytes", times.pool_bytes},
              {"replayed", times.replayed}};
  if (ranks > 1) {
    double parts_ms = ms.median;
    if (times.split != StepSplit::kNone) {
      MOERT_ASSIGN_OR_RETURN(const RankTimes parts, Time(load, budget, ranks, times.split));
      parts_ms = SpreadOf(parts.step_ms).median;
    }
    row["split"] = std::string(kSplits[static_cast<size_t>(times.split)]);
    row["parts_ms"] = parts_ms;
    row["exchange_share"] = 1 - parts_ms / ms.median;
  }
  if (!o_.quiet) Show(row);
  rows->push_back(std::move(row));
  return absl::OkStatus();
}

/// Every rank has the whole model and its own rows of each step; without a peer tier, and with one.
absl::Status RankBench::MeasureCopies(const RankLoad& load, const std::string& budget, int ranks,
                                      json* rows) const {
  const std::vector<std::vector<RoutedStep>> steps = RowsOfRanks(load, ranks);
  for (const bool peers : {false, true}) {
    MOERT_ASSIGN_OR_RETURN(RankHosts hosts, Hosts(ranks, /*alone=*/true));
    RankRun run;
    run.source = experts_;
    run.shards = {Shard{}};
    run.phase = load.phase;
    for (const std::vector<RoutedStep>& own : steps) run.steps.push_back(own);
    run.warm = load.warm;
    run.graph = false;
    run.options.backend = o_.backend == "cuda" ? BackendKind::kCuda : BackendKind::kCpu;
    run.options.max_tokens_per_forward = load.rows / ranks;
    run.options.threads = o_.threads;
    MOERT_ASSIGN_OR_RETURN(run.options.budget, ParseBudget(budget));
    if (peers) run.options.peers = MakePeerTier();
    MOERT_ASSIGN_OR_RETURN(const RankTimes times, TimeRanks(run, &hosts));
    const Spread ms = SpreadOf(times.step_ms);
    const int64_t copies = peers ? StatsOf(*run.options.peers).copies : 0;
    if (!o_.quiet) {
      Print(
          "copies  {:>5} rows, {:>5} a GPU, {} ranks, {}: {:9.3f} ms ({:.3f} .. {:.3f}) "
          "{:>10.0f} tokens/s  hits {:.2f}  {} copies between GPUs\n",
          load.rows, budget, ranks, peers ? "peers" : "alone", ms.median, ms.min, ms.max,
          1e3 * static_cast<double>(load.rows) / ms.median, times.hit_ratio, copies);
      std::fflush(stdout);
    }
    rows->push_back({{"phase", "decode"},
                     {"rows", load.rows},
                     {"budget", budget},
                     {"copies_of_the_model", ranks},
                     {"peers", peers},
                     {"step_ms", ToJson(ms)},
                     {"tokens_per_s", 1e3 * static_cast<double>(load.rows) / ms.median},
                     {"hit_ratio", times.hit_ratio},
                     {"loaded_bytes_a_step", times.loaded_bytes},
                     {"peer_copies", copies}});
  }
  return absl::OkStatus();
}

void RankBench::Show(const json& row) const {
  const Spread ms{row["step_ms"]["median"], row["step_ms"]["min"], row["step_ms"]["max"]};
  Print(
      "{:7} {:>5} rows, {:>5} a GPU, {} ranks: {:9.3f} ms ({:.3f} .. {:.3f}) {:>10.0f} "
      "tokens/s  efficiency {:.2f}  exchange {:>3.0f} %  hits {:.2f}, {:.1f} on the CPU  {} {}\n",
      row["phase"].get<std::string>(), row["rows"].get<int64_t>(), row["budget"].get<std::string>(),
      row["ranks"].get<int>(), ms.median, ms.min, ms.max, row["tokens_per_s"].get<double>(),
      row["efficiency"].get<double>(), 100 * row.value("exchange_share", 0.0),
      row["hit_ratio"].get<double>(), row["cpu_computed_a_step"].get<double>(),
      row["replayed"].get<bool>() ? "replayed" : "eager", row.value("split", ""));
  std::fflush(stdout);
}

absl::StatusOr<json> RankBench::Run(const std::string& command) {
  MOERT_ASSIGN_OR_RETURN(shape_, ParseShape(o_.synthetic));
  MOERT_ASSIGN_OR_RETURN(RankHosts first, Hosts(1));
  MOERT_ASSIGN_OR_RETURN(const Workload process,
                         Workload::Create(o_.workload, shape_.spec, shape_.common_share,
                                          static_cast<uint64_t>(o_.seed)));
  SyntheticOptions synthetic;
  synthetic.schemes = {o_.scheme};
  synthetic.memory_bytes = kPinnedBytes;
  synthetic.pin = first.pin;
  MOERT_ASSIGN_OR_RETURN(
      experts_, MakeSyntheticExperts(shape_, process, static_cast<uint64_t>(o_.seed), synthetic));
  if (!o_.quiet) {
    Print("{}\n{} x {} layers of {} experts, {}; MoE layers alone, {} tokens, rows in {}\n",
          command, shape_.name, shape_.spec.num_layers(), shape_.spec.layers[0].num_experts,
          o_.scheme, o_.tokens, o_.rows);
  }
  json rows = json::array();
  const auto measure = [&](Phase phase, int64_t count) -> absl::Status {
    // Each rank has as many copies.
    const int64_t all =
        o_.copies ? count * *std::max_element(o_.ranks.begin(), o_.ranks.end()) : count;
    const bool decode = phase == Phase::kDecode;
    RankLoadOptions steps{o_.workload,
                          phase,
                          all,
                          decode ? o_.warm : 2,
                          decode ? o_.steps : o_.prompt_steps,
                          static_cast<uint64_t>(o_.seed)};
    MOERT_ASSIGN_OR_RETURN(const RankLoad load, MakeRankLoad(shape_, steps));
    for (const absl::string_view budget : absl::StrSplit(o_.budget, ',', absl::SkipWhitespace())) {
      if (!o_.copies) {
        MOERT_RETURN_IF_ERROR(Measure(load, std::string(budget), &rows));
        continue;
      }
      for (const int ranks : o_.ranks) {
        MOERT_RETURN_IF_ERROR(MeasureCopies(load, std::string(budget), ranks, &rows));
      }
    }
    return absl::OkStatus();
  };
  for (const int batch : o_.batch) {
    if (batch > 0) MOERT_RETURN_IF_ERROR(measure(Phase::kDecode, batch));
  }
  for (const int prompt : o_.prompt) {
    if (prompt > 0) MOERT_RETURN_IF_ERROR(measure(Phase::kPrefill, prompt));
  }
  return json{{"command", command},      {"commit", BuildCommit()}, {"machine", DescribeMachine()},
              {"device", first.device},  {"shape", o_.synthetic},   {"scheme", o_.scheme},
              {"workload", o_.workload}, {"strategy", o_.strategy}, {"placement", o_.placement},
              {"tokens", o_.tokens},     {"dtype", o_.rows},        {"bf16_rows", o_.bf16_rows},
              {"rows", std::move(rows)}};
}

}  // namespace

int BenchRanks(int argc, const char* const* argv) {
  Options o;
  ArgParser parser("moert-bench ranks", "experts dealt out over the GPUs of a machine");
  parser.AddString("synthetic", &o.synthetic, "a published model's shape: SHAPE[:layers]");
  parser.AddString("workload", &o.workload, "steady, mixed, shift, scattered, uniform");
  parser.AddChoice("backend", &o.backend, {"cuda", "cpu"},
                   "ranks are devices over NCCL, a thread each, with CUDA_MODULE_LOADING=EAGER if "
                   "nothing else is set; or threads in host memory");
  parser.AddIntList("ranks", &o.ranks, "ranks, comma-separated, each against one", 1);
  parser.AddSwitch("copies", &o.copies,
                   "every rank has the whole model and rows of its own; with and without a peer "
                   "tier");
  parser.AddSwitch("no-peer-access", &o.no_peer_access,
                   "GPUs exchange through the host, as without NVLink (sets NCCL_P2P_DISABLE)");
  parser.AddChoice("placement", &o.placement, {"ranges", "popular"},
                   "who owns which experts: equal ranges, or balanced by use in the warm-up");
  parser.AddChoice("tokens", &o.tokens, {"replicated", "own"},
                   "every rank has all rows of a step, or its share of them");
  parser.AddChoice("rows", &o.rows, {"f32", "bf16"}, "cuda: dtype of hidden states and outputs");
  parser.AddInt64("bf16-rows", &o.bf16_rows,
                  "cuda: steps of so many rows and more exchange outputs as bf16; 0: none", 0);
  parser.AddChoice("split", &o.split, {"auto", "none", "rows", "experts"},
                   "how ranks that hold every expert (budget 100%) share a step");
  parser.AddString("budget", &o.budget,
                   "of each rank, comma-separated: SIZE, or PERCENT of the whole model's experts");
  parser.AddString("strategy", &o.strategy, "of budgets that do not hold every expert");
  parser.AddString("scheme", &o.scheme, "scheme of the experts");
  parser.AddIntList("batch", &o.batch, "rows of a decode step, comma-separated; 0: none", 0);
  parser.AddIntList("prompt", &o.prompt, "rows of a prompt's step, comma-separated; 0: none", 0);
  parser.AddInt64("steps", &o.steps, "decode steps that are timed", 1, 1000000);
  parser.AddInt64("warm", &o.warm, "decode steps before them", 0, 1000000);
  parser.AddInt64("prompt-steps", &o.prompt_steps, "prompts that are timed, behind two", 1, 1000);
  parser.AddSwitch("eager", &o.eager,
                   "nothing is captured; else decode steps are, and prompts where all is resident");
  parser.AddInt("threads", &o.threads, "cpu: compute threads of each rank; 0: one a core", 0, 1024);
  parser.AddInt64("seed", &o.seed, "seed of weights and workload", 0);
  parser.AddJson(&o.json);
  parser.AddSwitch("quiet", &o.quiet, "no table");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  if (o.no_peer_access) setenv("NCCL_P2P_DISABLE", "1", /*overwrite=*/1);
  // Before CUDA is used: see ExpertParallel.
  if (o.backend == "cuda") setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  RankBench bench(o);
  const absl::StatusOr<json> result = bench.Run("moert-bench ranks " + CommandLine(argc, argv));
  absl::Status status = result.status();
  if (status.ok() && !o.json.empty()) status = WriteJson(o.json, *result);
  return status.ok() ? kExitOk : ReportError("moert-bench ranks", status);
}

}  // namespace moert::cli
