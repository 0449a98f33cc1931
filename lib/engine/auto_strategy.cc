#include "moert/auto_strategy.h"

#include <optional>
#include <utility>

#include "base/bytes_text.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "engine/blueprint.h"
#include "engine/version_offers.h"
#include "fmt/format.h"
#include "moert/env.h"
#include "moert/offline/calibration.h"
#include "moert/strategy_params.h"
#include "strategies/routing_statistics.h"

namespace moert {
namespace {

/// What a spec of `auto` asks for.
struct Wanted {
  double loss = 0;
  std::string scheme;                      // the version of the most bits; empty: the source's
  std::optional<Calibration> calibration;  // what versions lose
};

absl::StatusOr<Wanted> WantedOf(absl::string_view spec) {
  const size_t colon = spec.find(':');
  const absl::string_view keys = colon == spec.npos ? "" : spec.substr(colon + 1);
  MOERT_ASSIGN_OR_RETURN(
      const StrategyParams params,
      StrategyParams::Parse("auto", std::string(keys), {"loss", "scheme", "calibration"}));
  Wanted wanted;
  MOERT_ASSIGN_OR_RETURN(wanted.loss, params.Number("loss", 0, 0, 1));
  wanted.scheme = params.Text("scheme", "");
  if (params.Has("calibration")) {
    MOERT_ASSIGN_OR_RETURN(wanted.calibration,
                           ReadCalibration(params.Text("calibration", ""), Env::Default()));
  }
  return wanted;
}

/// A calibration that says what versions lose; null without one.
absl::StatusOr<const Calibration*> LossesOf(const Wanted& wanted, const MoeModelSpec& model) {
  if (!wanted.calibration) return nullptr;
  MOERT_RETURN_IF_ERROR(CheckSameModel("the calibration", wanted.calibration->model, model));
  return wanted.calibration->probe_tokens > 0 ? &*wanted.calibration : nullptr;
}

/// What would let it choose among versions.
std::string WhatIsMissing(const Wanted& wanted) {
  if (wanted.calibration) {
    return "; the calibration has no end-to-end loss: make it without --probe-tokens 0 to serve "
           "fewer bits";
  }
  return "; to serve fewer bits give calibration=FILE of `moert-pack calibrate`";
}

}  // namespace

bool IsAuto(absl::string_view spec) { return spec == "auto" || spec.substr(0, 5) == "auto:"; }

absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options) try {
  if (!IsAuto(options.strategy)) {
    return StrategyChoice{options.strategy, "asked for by name", options.budget};
  }
  MOERT_ASSIGN_OR_RETURN(const Wanted wanted, WantedOf(options.strategy));
  const std::string keys = wanted.scheme.empty() ? "" : ":scheme=" + wanted.scheme;

  // What is wrong with every strategy is better said by the one that needs least.
  MOERT_ASSIGN_OR_RETURN(const Blueprint cache, TryStrategy(source, options, "fate" + keys));
  MOERT_ASSIGN_OR_RETURN(const Calibration* losses, LossesOf(wanted, source.model()));
  const auto all = TryStrategy(source, options, "resident" + keys);
  if (all.ok() && (wanted.loss == 0 || losses == nullptr)) {
    return StrategyChoice{
        all->strategy.spec,
        fmt::format("all {} experts take {} of the budget of {}", all->plan.total_experts,
                    BytesText(all->plan.own_bytes), BytesText(all->plan.budget_bytes)),
        options.budget};
  }
  EngineOptions bytes = options;
  bytes.budget = Budget::Bytes(cache.plan.budget_bytes);
  VersionOffers offers(source, bytes, wanted.loss, losses);
  offers.AddExact(all.ok() ? *all : cache);
  if (wanted.loss > 0) offers.AddLossy(cache.versions.front());
  StrategyChoice choice = offers.Take();
  if (wanted.loss > 0 && losses == nullptr) choice.why += WhatIsMissing(wanted);
  return choice;
} catch (...) {
  return ExceptionStatus("choosing a strategy");
}

}  // namespace moert
