// Names -> strategies, and the composition grammar of strategy.h.
#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "strategies/builtin.h"

namespace moert {
namespace {

struct Key {
  const char* name;
  const char* help;
};

struct Row {
  const char* name;
  const char* summary;
  std::vector<Key> keys;
  absl::StatusOr<Strategy> (*build)(const Params&);
};

constexpr Key kControl = {"control", "1: find out whether prefetching pays and stop it if not (1)"};
constexpr Key kScheme = {"scheme", "version of the pack to serve, by name (default: most bits)"};

constexpr Key kHot = {
    "hot",
    "experts that are high from the start, by layer: 0-3-7/1-2 for 0, 3, 7 of layer 0 and 1, 2 of "
    "layer 1 (the first ones)"};
constexpr Key kCalibration = {
    "calibration",
    "file of `moert-pack calibrate` whose most selected experts are high from the start, instead "
    "of hot (none)"};

const std::vector<Row>& Rows() {
  static const auto* rows = new std::vector<Row>{
      {"resident", "every expert loaded at open", {kScheme}, &BuildResident},
      {"on-demand", "LRU cache, misses are loaded; the exact default", {kScheme}, &BuildOnDemand},
      {"load-on-demand", "no routed expert is kept", {kScheme}, &BuildLoadOnDemand},
      {"activation-path",
       "LRU cache and prefetch by co-activation of adjacent layers, learned online",
       {kScheme, {"width", "predicted experts, percent of the active ones (100)"}, kControl},
       &BuildActivationPath},
      {"fate",
       "prefetch by the next layer's gate, ARC cache that favours shallow layers",
       {kScheme,
        {"percentile", "prefetch experts whose predicted score is above it, in [0, 100) (75)"},
        {"top", "prefetch this many a token instead (by percentile)"},
        kControl,
        {"wrap", "1: predict the first layer from the last one of the step before (0)"},
        {"shallow", "layers whose slots are filled first (dealt by measured miss curves)"},
        {"calibration",
         "file of moert-pack calibrate whose layer accuracies give `shallow`, unless that is "
         "given"},
        {"transient", "slots of no layer, for what passes through (what the window holds)"},
        {"low", "lossy: second scheme of the pack, for transfers in fewer bits (none)"},
        {"rho", "share of a prefill's tokens whose experts, the least popular, are sent low (0.1)"},
        {"miss_bits", "high or low: what a decode step that misses waits for (high)"},
        {"low_hits",
         "upgrade or keep: low copies that decode used are replaced behind the call, or stay "
         "(upgrade)"}},
       &BuildFate},
      {"importance",
       "lossy: low-score experts are replaced by resident look-alikes; eviction and prefetch by "
       "score",
       {kScheme,
        {"alpha", "half width of the substitution band, in [0, 1]; 0: exact routing (0.1)"},
        {"phase", "where substitution happens: decode or all (decode)"},
        {"second_pass", "1: group what must be fetched over the batch (0)"},
        {"max_slots", "cap on the substituted share of each request's slots (1)"},
        {"max_mass", "cap on the substituted share of each request's routing mass (1)"},
        {"weights", "of substitutes: own (gate score) or displaced (own)"},
        {"substitute",
         "whom a replaced slot gets: best (score), or to compare: random, nearest, skip (best)"},
        {"predict",
         "what prefetch goes by: forward (of the resident experts, through the host's next "
         "attention, where it offers that, else as gate) or gate (the next layer's) (forward)"},
        {"n", "iterations the average score spans (64)"},
        {"balancer",
         "misses shared with a CPU beside a GPU: 0 not, 1 by Algorithm 2, completion so that they "
         "are done earliest (completion)"},
        {"fill",
         "1: bring what the CPU computed while the link is idle (1 with balancer=completion, else "
         "0)"},
        {"control", "1: find out whether prefetching pays and stop it if not (1)"}},
       &BuildImportance},
      {"cpu-split",
       "the last layers' experts held, the others computed by the CPU where they are",
       {kScheme},
       &BuildCpuSplit},
      {"hybrimoe-like",
       "score-aware cache, prefetch by the next gate, misses shared with the CPU",
       {kScheme,
        {"decay", "weight of the newest scores in the cache's priority (0.3)"},
        {"balancer",
         "misses shared by Algorithm 2 (1) or so that they are done earliest (completion) "
         "(completion)"},
        {"fill", "1: bring what the CPU computed while the link is idle (0)"},
        {"control", "1: find out whether prefetching pays and stop it if not (1)"}},
       &BuildHybriMoeLike},
      {"expertflow-like",
       "LRU cache, all experts that the next gate predicts are fetched ahead",
       {kScheme},
       &BuildExpertFlowLike},
      {"dynaexq",
       "every expert resident, the hottest of each layer in the high version",
       {{"hi", "high version (bf16)"},
        {"lo", "low version (w4a16_g128)"},
        {"interval_ms", "between two decisions, ms (200)"},
        {"hi_fraction", "share of each layer's experts held high (what the budget holds)"},
        {"beta", "weight of the past in the exponential mean of selections (0.85)"},
        {"memory",
         "how many times longer a second mean remembers, which counts while chance explains its "
         "difference from the first; 1: none (8)"},
        {"margin",
         "a newcomer must be hotter than the weakest member by this share of the mean (0.2)"},
        {"noise", "and by this many standard deviations of chance (0.5)"},
        {"slack", "and this many ranks inside the target set (0)"},
        {"spare", "free blocks of each pool, so that full pools can swap (4)"},
        {"max_gbps", "limit of transition bytes, GB/s; 0: none (0)"},
        kHot,
        kCalibration},
       &BuildDynaExq},
      {"static-mixed",
       "every expert resident, a given set of them in the high version: mixed precision by offline "
       "frequency",
       {{"hi", "high version (bf16)"},
        {"lo", "low version (w4a16_g128)"},
        {"hi_fraction", "share of each layer's experts held high (what the budget holds)"},
        kHot,
        kCalibration},
       &BuildStaticMixed},
      {"never-stall",
       "a low version of every expert answers misses, high ones are cached behind it",
       {{"hi", "high version (bf16)"},
        {"lo", "low version (w2a16_g64_asym)"},
        {"max_gbps", "limit of transition bytes, GB/s; 0: none (0)"},
        {"n", "iterations that an expert's average score spans (256)"},
        {"margin", "a high version enters if its average is higher by this share (0.3)"}},
       &BuildNeverStall},
  };
  return *rows;
}

absl::StatusOr<Strategy> BuildOne(absl::string_view spec) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(spec, absl::MaxSplits(':', 1));
  std::vector<std::string> names;
  for (const Row& row : Rows()) {
    names.push_back(row.name);
    if (parts.first != row.name) continue;
    std::vector<std::string> keys;
    for (const Key& key : row.keys) keys.push_back(key.name);
    MOERT_ASSIGN_OR_RETURN(const Params params, Params::Parse(row.name, parts.second, keys));
    return row.build(params);
  }
  return absl::InvalidArgumentError(
      fmt::format("unknown strategy '{}'; there are: {}", parts.first, fmt::join(names, ", ")));
}

const std::vector<std::string>& SeamNames() {
  static const auto* names =
      new std::vector<std::string>{"routing", "prefetch", "residency", "precision", "placement"};
  return *names;
}

/// Moves one seam of `from` into `into`.
absl::Status TakeSeam(absl::string_view seam, Strategy* from, Strategy* into) {
  const auto take = [&](auto& source, auto& target) -> absl::Status {
    if (source == nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("strategy '{}' leaves its {} seam at the default", from->spec, seam));
    }
    target = std::move(source);
    return absl::OkStatus();
  };
  if (seam == "routing") {
    into->exact = into->exact && from->exact;
    return take(from->routing, into->routing);
  }
  if (seam == "prefetch") {
    into->prefetch_control = from->prefetch_control;
    return take(from->prefetch, into->prefetch);
  }
  if (seam == "residency") return take(from->residency, into->residency);
  if (seam == "precision") {
    into->exact = into->exact && from->exact;
    into->versions = from->versions;
    into->serving = from->serving;
    into->transitions = from->transitions;
    return take(from->precision, into->precision);
  }
  if (seam == "placement") {
    into->exact = into->exact && from->exact;
    return take(from->placement, into->placement);
  }
  return absl::InvalidArgumentError(
      fmt::format("unknown seam '{}'; seams are: {}", seam, fmt::join(SeamNames(), ", ")));
}

/// "A+B" without a seam: everything B fills, refused where A fills it too.
absl::Status Merge(Strategy* from, Strategy* into) {
  const auto merge = [&](absl::string_view seam, auto& source, auto& target) -> absl::Status {
    if (source == nullptr) return absl::OkStatus();
    if (target != nullptr) {
      return absl::InvalidArgumentError(
          fmt::format("strategies '{0}' and '{1}' both fill the {2} seam; name one, as in "
                      "'{0}+{1}.{2}'",
                      into->spec, from->spec, seam));
    }
    return TakeSeam(seam, from, into);
  };
  MOERT_RETURN_IF_ERROR(merge("routing", from->routing, into->routing));
  MOERT_RETURN_IF_ERROR(merge("prefetch", from->prefetch, into->prefetch));
  MOERT_RETURN_IF_ERROR(merge("residency", from->residency, into->residency));
  MOERT_RETURN_IF_ERROR(merge("precision", from->precision, into->precision));
  return merge("placement", from->placement, into->placement);
}

/// Splits "name.seam:params" into the strategy's spec and the seam.
std::pair<std::string, std::string> SplitSeam(absl::string_view part) {
  const size_t colon = std::min(part.find(':'), part.size());
  const size_t dot = part.substr(0, colon).find('.');
  if (dot == absl::string_view::npos) return {std::string(part), ""};
  return {fmt::format("{}{}", std::string(part.substr(0, dot)), std::string(part.substr(colon))),
          std::string(part.substr(dot + 1, colon - dot - 1))};
}

}  // namespace

absl::StatusOr<Strategy> MakeStrategy(absl::string_view spec) {
  const std::vector<std::string> parts = absl::StrSplit(spec, '+');
  MOERT_ASSIGN_OR_RETURN(Strategy strategy, BuildOne(parts[0]));
  strategy.spec = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto [name, seam] = SplitSeam(parts[i]);
    MOERT_ASSIGN_OR_RETURN(Strategy other, BuildOne(name));
    other.spec = name;
    MOERT_RETURN_IF_ERROR(seam.empty() ? Merge(&other, &strategy)
                                       : TakeSeam(seam, &other, &strategy));
  }
  strategy.spec = std::string(spec);
  return strategy;
}

std::vector<StrategyInfo> ListStrategies() {
  std::vector<StrategyInfo> list;
  for (const Row& row : Rows()) {
    StrategyInfo info{row.name, row.summary, {}};
    for (const Key& key : row.keys) info.keys.push_back(fmt::format("{}: {}", key.name, key.help));
    list.push_back(std::move(info));
  }
  return list;
}

}  // namespace moert
