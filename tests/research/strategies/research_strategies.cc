#include "research/strategies/research_strategies.h"

namespace moert {
namespace {

absl::Status RegisterAll() {
  const StrategyKey scheme = {"scheme",
                              "version of the pack to serve, by name (the one with the most bits)"};
  const StrategyKey control = {
      "control", "1: measure whether prefetching pays, and stop it while it does not (1)"};
  absl::Status status;
  status.Update(RegisterStrategy(
      {"load-on-demand", "no routed expert is kept after its layer call", {scheme}},
      &BuildLoadOnDemand));
  status.Update(RegisterStrategy(
      {"activation-path",
       "LRU cache, prefetch by which experts follow one another in adjacent layers, learned online",
       {scheme,
        {"width", "number of predicted experts, in percent of the active ones (100)"},
        control}},
      &BuildActivationPath));
  status.Update(RegisterStrategy(
      {"cpu-split", "the last layers' experts are held, the CPU computes the others", {scheme}},
      &BuildCpuSplit));
  status.Update(RegisterStrategy(
      {"hybrimoe-like",
       "score-aware cache, prefetch by the next layer's gate, misses shared with the CPU",
       {scheme,
        {"decay", "weight of the newest scores in the cache's priority (0.3)"},
        {"cpu", "misses shared by Algorithm 2 (turns) or so that they end earliest (1) (1)"},
        {"fill", "1: bring in what the CPU computed while the link is idle (0)"},
        control}},
      &BuildHybriMoeLike));
  status.Update(RegisterStrategy(
      {"expertflow-like",
       "LRU cache, every expert that the next layer's gate predicts is fetched ahead",
       {scheme}},
      &BuildExpertFlowLike));
  status.Update(RegisterStrategy(
      {"expertflow-2510-like",
       "two-level LRU cache, every expert that the next layer's gate predicts is fetched ahead",
       {scheme}},
      &BuildExpertFlow2510Like));
  status.Update(RegisterStrategy(
      {"moe-infinity-like",
       "prefetch and eviction by the recorded sequence whose activations are most alike",
       {scheme,
        {"sequence", "decode steps after which a sequence is taken to end (128)"},
        {"traces", "recorded sequences that are kept, the newest (100)"},
        control}},
      &BuildMoeInfinityLike));
  status.Update(RegisterStrategy(
      {"static-mixed",
       "every expert resident, a given set of them in the high version, which never changes",
       {{"hi", "high version (bf16)"},
        {"lo", "low version (w4a16_g128)"},
        {"hi_fraction", "share of each layer's experts held high (what the budget holds)"},
        {"hot",
         "experts that are high, by layer: 0-3-7/1-2 for 0, 3, 7 of layer 0 and 1, 2 of layer 1 "
         "(the first ones)"},
        {"calibration",
         "file of `moert-pack calibrate` whose most selected experts are high, instead of `hot` "
         "(none)"}}},
      &BuildStaticMixed));
  return status;
}

}  // namespace

absl::Status RegisterResearchStrategies() {
  static const absl::Status status = RegisterAll();
  return status;
}

}  // namespace moert
