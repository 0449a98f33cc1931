#include "cli/bench/model_options.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "moert/strategy.h"
#include "util/status_macros.h"

namespace moert::cli {

void AddModelBenchFlags(ArgParser* parser, ModelBenchOptions* o) {
  parser->AddString(
      "synthetic", &o->synthetic,
      "a published model's shape: SHAPE[:layers]; beside a trace, only how wide its experts are");
  parser->AddString(
      "workload", &o->workload,
      "steady, mixed, shift, scattered, uniform (docs/results/workloads.md), or trace:FILE");
  parser->AddString(
      "strategy", &o->strategy,
      "SPEC[@BUDGET][;...]: compared with each other, each at its own budget if given; all: every "
      "built-in one; one with hot=before begins after the warm-up, high where the one in front "
      "that "
      "warmed up is high then");
  parser->AddChoice("backend", &o->backend, {"cpu", "cuda"}, "where experts execute");
  parser->AddString("budget", &o->budget, "SIZE or PERCENT, comma-separated");
  parser->AddString("host-budget", &o->host_budget,
                    "cuda: pinned memory that keeps experts, SIZE, PERCENT of theirs, all; others "
                    "are read from memory that is not pinned. Without it all lie in pinned memory");
  parser->AddString("schemes", &o->schemes, "stored versions, comma-separated, most bits first");
  parser->AddInt("mixed", &o->mixed,
                 "versions more, mixed-0 and on, of schemes drawn for each linear block", 0, 1000);
  parser->AddString("mixed-schemes", &o->mixed_schemes,
                    "what these are drawn from, comma-separated; empty: ten of 2 to 8 bits");
  if (o->bench == "layer") {
    parser->AddString("costs", &o->costs,
                      "tile cost table (h200, or a file) that predicts the time of each version");
  }
  parser->AddString("dir", &o->directory,
                    "folder on the disk that experts are read from; without it, from memory");
  if (o->bench == "layer") {
    parser->AddIntList("tokens", &o->batch, "tokens of a call, comma-separated", 1);
  } else {
    parser->AddIntList("batch", &o->batch, "requests side by side, comma-separated", 1);
  }
  if (o->prefill()) {
    parser->AddInt64("prompt", &o->prompt, "tokens of each prompt", 1, 65536);
  }
  parser->AddInt64("steps", &o->steps, "steps of a repetition", 1, 1000000);
  parser->AddInt64("repeats", &o->repeats, "repetitions, taken in turn by the strategies", 1,
                   10000);
  parser->AddInt64("warm", &o->warm, "first steps that are not counted", 0, 1000000);
  parser->AddInt("threads", &o->threads, "compute threads; 0: one a core", 0, 1024);
  parser->AddInt("io-threads", &o->io_threads, "threads that read experts", 1, 16);
  parser->AddDouble("link-gbps", &o->link_gbps, "paces transfers to this rate, GB/s; 0: not");
  parser->AddDouble(
      "attention-us", &o->attention_us,
      "emulated attention a layer; below 0: what reading its weights would take, on a "
      "device also the cache of --context tokens a request");
  parser->AddInt64("context", &o->context, "cuda: tokens in each request's cache", 0, 1 << 24);
  parser->AddSwitch("graph", &o->graph,
                    "cuda: steps of strategies that never wait are replayed from a CUDA graph");
  parser->AddSwitch("layer-times", &o->layer_times, "cuda: times each layer on the device's clock");
  parser->AddString("kernels", &o->kernels, "CPU kernel set: auto or a name");
  parser->AddChoice("clock", &o->clock, {"wall", "virtual"},
                    "virtual: logical times, reproducible; then one repetition says all");
  parser->AddString("profile", &o->profile, "hardware profile: reference, or a file of probe");
  parser->AddOutput("trace", &o->trace, "records the first strategy's run at the first budget");
  parser->AddSize("memory", &o->memory, "most memory that engines may hold together");
  parser->AddInt64("seed", &o->seed, "seed of weights and workload", 0);
  parser->AddJson(&o->json);
  parser->AddOutput("plot", &o->plot, "draws the figures: FILE.svg, .png or .pdf (matplotlib)");
  parser->AddSwitch("quiet", &o->quiet, "no table, no progress");
}

absl::StatusOr<EngineOptions> MakeEngineOptions(const ModelBenchOptions& o) {
  if (!std::isfinite(o.link_gbps) || o.link_gbps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--link-gbps: ", o.link_gbps, " is not a rate; 0 or more"));
  }
  if (!std::isfinite(o.attention_us) || o.attention_us > 1e9) {
    return absl::InvalidArgumentError(
        absl::StrCat("--attention-us: ", o.attention_us, "; at most 1e9, below 0: estimated"));
  }
  if (o.on_device() && o.clock != "wall") {
    return absl::InvalidArgumentError("--backend cuda: on the wall clock only (--clock wall)");
  }
  if (o.on_device() && !o.directory.empty() && o.host_budget.empty()) {
    return absl::InvalidArgumentError(
        "--backend cuda: experts lie in pinned memory; with --dir give a --host-budget");
  }
  if (!o.on_device() && !o.host_budget.empty()) {
    return absl::InvalidArgumentError("--host-budget: of --backend cuda");
  }
  EngineOptions e;
  e.backend = o.on_device() ? BackendKind::kCuda : BackendKind::kCpu;
  e.clock = o.clock == "virtual" ? ClockKind::kVirtual : ClockKind::kWall;
  MOERT_ASSIGN_OR_RETURN(e.profile, LoadProfile(o.profile));
  e.link_gbps = o.link_gbps;
  e.threads = o.threads;
  e.io_threads = o.io_threads;
  e.kernels = o.kernels;
  return e;
}

absl::StatusOr<std::vector<StrategyChoice>> ParseStrategies(const std::string& text) {
  std::vector<StrategyChoice> choices;
  for (const absl::string_view part : absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> at = absl::StrSplit(part, absl::MaxSplits('@', 1));
    if (at.first != "all") {
      choices.push_back({at.first, at.second});
      continue;
    }
    for (const StrategyInfo& info : ListStrategies()) {
      const absl::StatusOr<Strategy> strategy = MakeStrategy(info.name);
      if (!strategy.ok()) continue;  // its name alone is no specification
      // A strategy that holds everything is compared at a budget of 100%.
      choices.push_back({info.name, strategy->preload && at.second.empty() ? "100%" : at.second});
    }
  }
  if (choices.empty()) return absl::InvalidArgumentError("--strategy: no strategy");
  return choices;
}

}  // namespace moert::cli
