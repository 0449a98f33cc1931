// The built-in strategies as users see them: names, one-sentence summaries, keys.
#include "strategies/builtin.h"

#include "base/errors.h"
#include "base/fmt_absl.h"

namespace moert {
namespace {

// Functions, not objects: strategies may be listed before this file's objects are initialized.
StrategyKey SchemeKey() {
  return {"scheme", "version of the pack to serve, by name (the one with the most bits)"};
}
StrategyKey Control() {
  return {"control", "1: measure whether prefetching pays, and stop it while it does not (1)"};
}
StrategyKey High() { return {"hi", "high version (bf16)"}; }

StrategyKey PredictKey() {
  return {
      "predict",
      "what the next layer's gate predicts from in decode steps: forward (this layer's resident "
      "experts and the host's next attention, where the host offers that and it pays) or gate "
      "(this layer's input) (forward)"};
}

RegisteredStrategy Fate() {
  return {
      {"fate",
       "prefetch by the next layer's gate where it pays, eviction by score over slots that layers "
       "share",
       {SchemeKey(),
        {"percentile",
         "prefetch the experts whose predicted score is above this percentile, in [0, 100) "
         "(75)"},
        {"top", "prefetch this many experts a token instead (by percentile)"},
        Control(),
        PredictKey(),
        {"wrap", "1: predict the first layer from the last layer of the step before (0)"},
        {"eviction",
         "who leaves: the expert that the gate's scores say will be wanted least (score), or by "
         "ARC as in the paper (arc) (score)"},
        {"shallow",
         "number of first layers that get all their slots (slots are shared; eviction=arc: dealt "
         "by "
         "measured misses)"},
        {"calibration",
         "file of `moert-pack calibrate` whose layer accuracies choose `shallow`, where that "
         "is not given (none)"},
        {"transient",
         "slots that belong to no layer, for experts passing through; the others are dealt to "
         "layers (slots are shared; eviction=arc: what the window holds)"},
        {"low", "second version of the pack, for transfers in fewer bits; lossy (none)"},
        {"rho",
         "share of a prefill's tokens whose experts, the least popular, are sent in `low` (0.1)"},
        {"miss_bits", "version that a decode step waits for on a miss: high or low (high)"},
        {"low_hits",
         "low copies that decode has used: upgrade replaces them behind the call, keep leaves "
         "them (upgrade)"},
        CpuKey()}},
      &BuildFate};
}

RegisteredStrategy Importance() {
  return {
      {"importance",
       "lossy: low-score experts that are absent are replaced by resident ones; eviction and "
       "prefetch by score",
       {SchemeKey(),
        {"alpha", "half width of the substitution band, in [0, 1]; 0: exact routing (0.1)"},
        {"phase", "where experts are replaced: decode or all (decode)"},
        {"second_pass", "1: also replace by experts that other tokens fetch anyway (0)"},
        {"max_slots", "cap on the substituted share of each request's slots (1)"},
        {"max_mass", "cap on the substituted share of each request's routing mass (1)"},
        {"weights",
         "weight of a substitute: own (its gate score) or displaced (that of the expert it "
         "replaces) (own)"},
        PredictKey(),
        {"n", "iterations that an expert's average score spans (64)"},
        {"cpu",
         "misses shared with a CPU beside a GPU: 1 (so that link and CPU end earliest), turns "
         "(by Algorithm 2), 0 (all are loaded) or auto (0 where the host accepts exact results "
         "alone, else 1) (auto)"},
        {"fill", "1: bring in what the CPU computed while the link is idle (1 with cpu=1, else 0)"},
        Control()}},
      &BuildImportance};
}

RegisteredStrategy Graded() {
  return {{"graded",
           "lossy, bounded: misses that matter little are answered by low versions at once, others "
           "wait for high ones",
           {High(),
            {"lo", "low version (w2a16_g64_asym)"},
            {"wait",
             "0: no miss waits: the low version of every expert is resident and answers, high "
             "versions are cached behind it; with hi, lo, max_gbps, n and margin alone (1)"},
            {"standby",
             "1: the low version of every expert is resident; 0: it is brought for the call, in "
             "its fewer bytes (0)"},
            {"transient",
             "slots that belong to no layer; the others are dealt to layers (slots are shared)"},
            {"loss",
             "share of each request's routing mass that may be answered low or substituted (0.05)"},
            {"patience",
             "a miss is answered low if it takes at most this fraction (1 over it) of what its "
             "requests may still lose (16)"},
            {"alpha", "half width of the band in which experts are substituted; 0: none are (0.3)"},
            {"substituted", "share of `loss` for substitutes, where alpha is not 0 (0.7)"},
            {"cpu",
             "misses shared with a CPU beside a GPU: 1 (so that link and CPU end earliest), 0 (all "
             "are loaded or answered low) or auto (1) (auto)"},
            Control(),
            {"max_gbps", "wait=0: limit of the bytes moved for transitions, GB/s; 0: none (0)"},
            {"n", "wait=0: iterations that an expert's average score spans (256)"},
            {"margin",
             "wait=0: a high version enters if its average score is higher by this share than that "
             "of the one it replaces (0.3)"}}},
          &BuildGraded};
}

RegisteredStrategy DynaExq() {
  return {
      {"dynaexq",
       "every expert resident, the hottest of each layer in the high version; or each in that one "
       "of several versions in which use and calibrated loss want it",
       {High(),
        {"lo", "low version (w4a16_g128)"},
        {"versions",
         "three or four versions, most bits first, instead of `hi` and `lo`: the least loss for "
         "the "
         "bytes by `calibration`, which must be given, and by measured use; not with rank, slack "
         "and hot; CPU (none)"},
        {"interval_ms", "time between two decisions, ms (200)"},
        {"hi_fraction",
         "share of each layer's experts held high; of `versions`: bytes for this share in the "
         "first "
         "and the others in the last (what the budget holds)"},
        {"rank",
         "what makes an expert high: being among the hottest of its layer (`hotness`), or being "
         "among those of all layers whose low versions cost the model most, as `calibration` "
         "measured (`loss`) (hotness)"},
        {"beta", "weight of the past in the exponential mean of selections (0.85)"},
        {"memory",
         "a second mean remembers this many times longer; it counts while chance explains how it "
         "differs from the first; 1: no second mean (8)"},
        {"margin",
         "a newcomer must be hotter than the coldest member by this share of the layer's mean; of "
         "`versions`: a use that differs by this share moves nobody (0.2; of `versions` 0.1)"},
        {"noise", "and by this many standard deviations of chance (0.5)"},
        {"slack", "and rank this many places inside the target set (0)"},
        {"spare",
         "free blocks of each pool, so that full pools can swap (what the link carries in a "
         "decode step: 4 at least, at most one of 64 experts; of `versions` half of that, of the "
         "first and of the last)"},
        {"max_gbps", "limit of the bytes moved for transitions, GB/s; 0: none (0)"},
        {"hot",
         "experts that are high from the start, by layer: 0-3-7/1-2 for 0, 3, 7 of layer 0 and "
         "1, 2 of layer 1 (the first ones)"},
        {"calibration",
         "file of `moert-pack calibrate` whose most selected experts are high from the start, "
         "instead of `hot`, until what is selected here says otherwise (none)"}}},
      &BuildDynaExq};
}

}  // namespace

std::vector<RegisteredStrategy> BuiltinStrategies() {
  return {
      {{"auto",
        "chosen from budget, model and machine when the engine opens: all loaded where they fit, "
        "else fate, with cpu=1 beside a GPU; within an accepted loss in fewer bits",
        {SchemeKey(),
         {"loss",
          "accepted loss: share of perplexity where `calibration` says what versions lose; else "
          "share of each request's routing mass that `graded` may answer in a lower version (0)"},
         {"calibration",
          "file of `moert-pack calibrate`: a version of fewer bits is served where that is "
          "expected "
          "to be faster and its predicted loss is accepted (none)"}}},
       &BuildAuto},
      {{"resident", "every expert loaded at open", {SchemeKey()}}, &BuildResident},
      {{"on-demand", "LRU cache, misses are loaded; the exact default", {SchemeKey(), CpuKey()}},
       &BuildOnDemand},
      Fate(),
      Importance(),
      Graded(),
      DynaExq(),
  };
}

absl::Status RefuseKeys(absl::string_view strategy, const StrategyParams& params,
                        std::initializer_list<const char*> keys, absl::string_view setting) {
  for (const char* key : keys) {
    if (!params.Has(key)) continue;
    return InvalidArgument("strategy {}: key '{}' has no effect with {}", strategy, key, setting);
  }
  return absl::OkStatus();
}

}  // namespace moert
