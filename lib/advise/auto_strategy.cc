#include "moert/tools/auto_strategy.h"

#include <utility>

#include "absl/strings/match.h"
#include "advise/version_offers.h"
#include "base/bytes_text.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "engine/blueprint.h"
#include "fmt/format.h"
#include "moert/offline/calibration.h"
#include "moert/strategy_params.h"
#include "moert/tools/env.h"
#include "strategies/routing_statistics.h"

namespace moert {
namespace {

/// A hint in the result's reason: the condition under which `auto` could choose among versions.
std::string WhatIsMissing(const AutoKeys& keys) {
  if (!keys.calibration.empty()) {
    return fmt::format(
        "; {} has no end-to-end loss: make it without --probe-tokens 0 to be served fewer bits",
        keys.calibration);
  }
  return "; to be served fewer bits give calibration=FILE of `moert-pack calibrate --method hqq`";
}

/// Misses are shared with the CPU if at most this share of the experts has slots. On an H200, with
/// Qwen3-30B's shape and the workload `mixed`, a CPU that stands ready costs a step of one request
/// 7 % with 90 % of the experts in slots and 3 % with 50 %. It gains 7 % with 25 %, and with eight
/// requests and 50 % a step takes 0.61 of the time.
constexpr double kMostSharing = 0.75;

/// The spec of `fate` with an explicit key `cpu`, if the default by the accepted promise would
/// decide otherwise about sharing misses with the CPU.
std::string WithCpu(const std::string& fate, bool shares, const EngineOptions& options) {
  const bool by_promise = options.promise.value_or(Promise::kExact) >= Promise::kFaithful;
  if (!shares && !by_promise) return fate;
  return fmt::format("{}{}cpu={}", fate, fate.find(':') == fate.npos ? ':' : ',', shares ? 1 : 0);
}

/// The weakest promise that may be chosen.
absl::StatusOr<Promise> Accepted(const EngineOptions& options, const AutoKeys& keys) {
  if (!options.promise.has_value()) return keys.loss > 0 ? Promise::kLossy : Promise::kFaithful;
  if (keys.loss == 0 || *options.promise == Promise::kLossy) return *options.promise;
  return InvalidArgument(
      "strategy auto: loss={:g} is lossy, and the host accepts what is {}: accept lossy results "
      "(EngineOptions::promise), or leave loss out",
      keys.loss, PromiseName(*options.promise));
}

StrategyChoice Resident(const Blueprint& all, const EngineOptions& options) {
  return {all.strategy.spec,
          fmt::format("all {} experts take {} of the budget of {}", all.plan.total_experts,
                      BytesText(all.plan.own_bytes), BytesText(all.plan.budget_bytes)),
          options.budget};
}

/// Chooses the strategy for `keys`. `calibration`: losses of versions; null: not known.
absl::StatusOr<StrategyChoice> Choose(const ExpertSource& source, const EngineOptions& options,
                                      const AutoKeys& keys, const Calibration* calibration) {
  const std::string scheme = keys.scheme.empty() ? "" : ":scheme=" + keys.scheme;
  // Errors that all strategies share are reported by the one with the least requirements.
  MOERT_ASSIGN_OR_RETURN(const Promise accepted, Accepted(options, keys));
  auto tried = TryStrategy(source, options, "fate" + scheme);
  const auto all = TryStrategy(source, options, "resident" + scheme);
  // Few small experts may take less memory than the state for prediction and eviction.
  if (!tried.ok() && all.ok()) return Resident(*all, options);
  MOERT_ASSIGN_OR_RETURN(Blueprint cache, std::move(tried));
  const bool shares = accepted >= Promise::kFaithful && cache.backend->cpu_beside(source) &&
                      cache.plan.slots <= kMostSharing * cache.plan.total_experts;
  const std::string cached = WithCpu("fate" + scheme, shares, options);
  if (cached != cache.strategy.spec) {
    MOERT_ASSIGN_OR_RETURN(cache, TryStrategy(source, options, cached));
  }
  if (calibration != nullptr) {
    MOERT_RETURN_IF_ERROR(CheckSameModel(keys.calibration, calibration->model, source.model()));
  }
  const bool known = calibration != nullptr && calibration->probe_tokens > 0;
  if (all.ok() && (keys.loss == 0 || !known)) return Resident(*all, options);
  EngineOptions bytes = options;
  bytes.budget = Budget::Bytes(cache.plan.budget_bytes);
  VersionOffers offers(
      source, bytes, keys.loss, known ? calibration : nullptr, [&](const std::string& spec) {
        const bool caches = absl::StartsWith(spec, "fate");
        return TryStrategy(source, bytes, caches ? WithCpu(spec, shares, options) : spec);
      });
  offers.AddExact(all.ok() ? *all : cache);
  if (keys.loss > 0) offers.AddLossy(cache.versions.front());
  StrategyChoice choice = offers.Take();
  if (absl::StartsWith(choice.spec, "fate") && shares) {
    choice.why +=
        "; the CPU computes some misses: faithful, not bit-identical (promise exact: none)";
  }
  if (keys.loss > 0 && !known) choice.why += WhatIsMissing(keys);
  return choice;
}

StrategyChoice AsItIs(const EngineOptions& options) {
  return {options.strategy, "asked for by name", options.budget};
}

}  // namespace

bool IsAuto(absl::string_view spec) { return spec == "auto" || spec.substr(0, 5) == "auto:"; }

absl::StatusOr<AutoKeys> ParseAuto(absl::string_view spec) try {
  const size_t colon = spec.find(':');
  const absl::string_view text = colon == spec.npos ? "" : spec.substr(colon + 1);
  MOERT_ASSIGN_OR_RETURN(
      const StrategyParams params,
      StrategyParams::Parse("auto", std::string(text), {"loss", "scheme", "calibration"}));
  AutoKeys keys;
  MOERT_ASSIGN_OR_RETURN(keys.loss, params.Number("loss", 0, 0, 1));
  keys.scheme = params.Text("scheme", "");
  keys.calibration = params.Text("calibration", "");
  return keys;
} catch (...) {
  return ExceptionStatus("parsing a strategy");
}

absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options) try {
  if (!IsAuto(options.strategy)) return AsItIs(options);
  MOERT_ASSIGN_OR_RETURN(const AutoKeys keys, ParseAuto(options.strategy));
  if (keys.calibration.empty()) return Choose(source, options, keys, nullptr);
  MOERT_ASSIGN_OR_RETURN(const Calibration calibration,
                         ReadCalibration(keys.calibration, Env::Default()));
  return Choose(source, options, keys, &calibration);
} catch (...) {
  return ExceptionStatus("choosing a strategy");
}

absl::StatusOr<StrategyChoice> ChooseStrategy(const ExpertSource& source,
                                              const EngineOptions& options,
                                              const Calibration& calibration) try {
  if (!IsAuto(options.strategy)) return AsItIs(options);
  MOERT_ASSIGN_OR_RETURN(const AutoKeys keys, ParseAuto(options.strategy));
  return Choose(source, options, keys, &calibration);
} catch (...) {
  return ExceptionStatus("choosing a strategy");
}

}  // namespace moert
