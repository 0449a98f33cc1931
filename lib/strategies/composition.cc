// The composition grammar of strategy.h: A+B.seam. A part that would have no effect is refused.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "strategies/registry.h"

namespace moert {
namespace {

enum Seam { kRouting, kPrefetch, kResidency, kPrecision, kPlacement, kSeams };
constexpr std::array<absl::string_view, kSeams> kSeamNames = {"routing", "prefetch", "residency",
                                                              "precision", "placement"};

/// A strategy under construction, with the origin of each part for messages.
struct Composition {
  Strategy strategy;
  std::string serving;                     // spec of the strategy that `serving` comes from
  std::array<std::string, kSeams> filler;  // name of the strategy that fills a seam
};

absl::string_view NameOf(absl::string_view spec) { return spec.substr(0, spec.find(':')); }

bool Fills(const Strategy& strategy, Seam seam) {
  switch (seam) {
    case kRouting:
      return strategy.routing != nullptr;
    case kPrefetch:
      return strategy.prefetch != nullptr;
    case kResidency:
      return strategy.residency != nullptr;
    case kPrecision:
      return strategy.precision != nullptr;
    case kPlacement:
      return strategy.placement != nullptr;
    case kSeams:
      break;
  }
  return false;
}

bool FillsAny(const Strategy& strategy) {
  for (int i = 0; i < kSeams; ++i) {
    if (Fills(strategy, static_cast<Seam>(i))) return true;
  }
  return false;
}

/// Moves one seam that `from` fills to `into`, with the fields that belong to the seam.
void TakeSeam(Seam seam, Strategy* from, Composition* into) {
  Strategy& to = into->strategy;
  into->filler[seam] = std::string(NameOf(from->spec));
  switch (seam) {
    case kRouting:
      to.routing = std::move(from->routing);
      return;
    case kPrefetch:
      to.prefetch_control = from->prefetch_control;
      to.prefetch = std::move(from->prefetch);
      return;
    case kResidency:
      to.residency = std::move(from->residency);
      return;
    case kPrecision:
      to.precision = std::move(from->precision);
      // These ways of serving never ask a precision policy: CheckEffect refuses it.
      if (to.preload || to.serving == Serving::kLowPlusCache) return;
      into->serving = from->spec;
      to.serving = from->serving;
      to.transitions = from->transitions;
      to.versions = from->versions;
      return;
    case kPlacement:
      to.placement = std::move(from->placement);
      return;
    case kSeams:
      return;
  }
}

/// The reason why a filled seam can have no effect; empty: it has one.
absl::string_view WhyInert(const Strategy& strategy, Seam seam) {
  if (strategy.preload) {
    constexpr std::array<absl::string_view, kSeams> kWhy = {
        "loads every expert at open, so none is ever replaced by another",
        "loads every expert at open, so nothing is ever fetched ahead of a miss",
        "loads every expert at open, so nothing is ever evicted",
        "loads every expert at open in one version, so there is no version to choose",
        "loads every expert at open, so there is no miss to place"};
    return kWhy[seam];
  }
  if (strategy.serving == Serving::kHotSet) {
    if (seam == kPrefetch) {
      return "keeps every expert resident, so nothing is ever fetched ahead of a miss";
    }
    if (seam == kResidency) {
      return "keeps every expert resident and chooses versions by its precision policy, so nothing "
             "is ever evicted";
    }
    if (seam == kPlacement) return "keeps every expert resident, so there is no miss to place";
  }
  if (strategy.serving == Serving::kLowPlusCache) {
    if (seam == kPrecision) {
      return "keeps the low version of every expert and chooses the high ones by its residency "
             "policy, so no precision policy is asked";
    }
    if (seam == kPlacement) return "answers every miss with the low version, so none is placed";
  }
  if (strategy.serving == Serving::kCache && seam == kPrecision && strategy.versions.size() < 2) {
    return "serves one version, so there is none to choose";
  }
  return {};
}

/// Suggests a replacement for a composition whose `seam` has no effect.
std::string Instead(const Composition& composition, Seam seam) {
  std::string instead = fmt::format("write '{}'", composition.serving);
  const bool hot_set = composition.strategy.serving == Serving::kHotSet;
  if (hot_set && (seam == kPrefetch || seam == kResidency)) {
    instead += fmt::format(", or 'graded:wait=0+{}.{}', which caches high versions",
                           composition.filler[seam], kSeamNames[seam]);
  }
  return instead;
}

absl::Status CheckEffect(const Composition& composition, absl::string_view spec) {
  for (int i = 0; i < kSeams; ++i) {
    const auto seam = static_cast<Seam>(i);
    if (!Fills(composition.strategy, seam)) continue;
    const absl::string_view why = WhyInert(composition.strategy, seam);
    if (why.empty()) continue;
    return InvalidArgument("strategy '{}': the {} policy of '{}' would have no effect: '{}' {}; {}",
                           spec, kSeamNames[seam], composition.filler[seam], composition.serving,
                           why, Instead(composition, seam));
  }
  return absl::OkStatus();
}

/// Refuses versions that would be ignored: a cache serves the versions of the first strategy, or of
/// the one that brings the precision policy.
absl::Status CheckVersions(const Strategy& from, bool with_precision, const Strategy& into) {
  if (with_precision || from.serving != Serving::kCache || from.versions.empty() ||
      from.versions == into.versions) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "strategy '{}': the versions it names ({}) would be ignored; name them in the first "
      "strategy, '{}:scheme=...'",
      from.spec, fmt::join(from.versions, ", "), NameOf(into.spec));
}

/// "A+B.seam": adds that seam of B.
absl::Status AddSeam(absl::string_view name, Strategy* from, Composition* into) {
  const auto it = std::find(kSeamNames.begin(), kSeamNames.end(), name);
  if (it == kSeamNames.end()) {
    return InvalidArgument("unknown seam '{}'; seams are: {}", name, fmt::join(kSeamNames, ", "));
  }
  const auto seam = static_cast<Seam>(it - kSeamNames.begin());
  if (!Fills(*from, seam)) {
    return InvalidArgument("strategy '{}' leaves its {} seam at the default", from->spec, name);
  }
  MOERT_RETURN_IF_ERROR(CheckVersions(*from, seam == kPrecision, into->strategy));
  TakeSeam(seam, from, into);
  return absl::OkStatus();
}

/// "A+B": adds every seam that B fills; refused if A fills it too.
absl::Status AddAll(Strategy* from, Composition* into) {
  const absl::string_view name = NameOf(from->spec);
  if (from->preload || (from->serving != Serving::kCache && !Fills(*from, kPrecision))) {
    const std::string& spec = from->spec;
    const std::string instead =
        from->preload || !FillsAny(into->strategy)
            ? fmt::format("write '{}'", spec)
            : fmt::format("put it first, as in '{}+{}'", spec, into->strategy.spec);
    return InvalidArgument(
        "strategy '{0}': how it keeps experts is no seam, so '+{0}' would lose it; {1}{2}", name,
        instead, FillsAny(*from) ? ", or name one of its seams" : "");
  }
  MOERT_RETURN_IF_ERROR(CheckVersions(*from, Fills(*from, kPrecision), into->strategy));
  if (!FillsAny(*from)) {
    return InvalidArgument(
        "strategy '{0}' leaves every seam at its default, so '+{0}' would have no effect", name);
  }
  for (int i = 0; i < kSeams; ++i) {
    const auto seam = static_cast<Seam>(i);
    if (!Fills(*from, seam)) continue;
    if (Fills(into->strategy, seam)) {
      return InvalidArgument(
          "strategies '{0}' and '{1}' both fill the {2} seam; name one, as in '{0}+{1}.{2}'",
          into->strategy.spec, from->spec, kSeamNames[seam]);
    }
    TakeSeam(seam, from, into);
  }
  return absl::OkStatus();
}

/// Splits "name.seam:params" into the strategy's spec and the seam.
std::pair<std::string, std::string> SplitSeam(absl::string_view part) {
  const size_t colon = std::min(part.find(':'), part.size());
  const size_t dot = part.substr(0, colon).find('.');
  if (dot == absl::string_view::npos) return {std::string(part), ""};
  return {fmt::format("{}{}", part.substr(0, dot), part.substr(colon)),
          std::string(part.substr(dot + 1, colon - dot - 1))};
}

}  // namespace

absl::StatusOr<Strategy> MakeStrategy(absl::string_view spec,
                                      std::optional<Promise> accepted) try {
  const std::vector<std::string> parts = absl::StrSplit(spec, '+');
  Composition composition;
  MOERT_ASSIGN_OR_RETURN(composition.strategy, BuildOne(parts[0], accepted));
  composition.serving = parts[0];
  composition.filler.fill(std::string(NameOf(parts[0])));
  for (size_t i = 1; i < parts.size(); ++i) {
    const auto [name, seam] = SplitSeam(parts[i]);
    MOERT_ASSIGN_OR_RETURN(Strategy other, BuildOne(name, accepted));
    MOERT_RETURN_IF_ERROR(seam.empty() ? AddAll(&other, &composition)
                                       : AddSeam(seam, &other, &composition));
  }
  MOERT_RETURN_IF_ERROR(CheckEffect(composition, spec));
  composition.strategy.spec = std::string(spec);
  MOERT_RETURN_IF_ERROR(composition.strategy.Validate());
  return std::move(composition.strategy);
} catch (...) {
  return ExceptionStatus("making a strategy");
}

}  // namespace moert
