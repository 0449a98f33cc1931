// The offers that `auto` chooses from: strategies over a source's versions that fit a budget and an
// accepted loss, with the expected time and the predicted loss of each.
#ifndef MOERT_LIB_ADVISE_VERSION_OFFERS_H_
#define MOERT_LIB_ADVISE_VERSION_OFFERS_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/blueprint.h"
#include "moert/offline/calibration.h"
#include "moert/options.h"
#include "moert/source/expert_source.h"
#include "moert/tools/auto_strategy.h"
#include "moert/tools/version_choice.h"

namespace moert {

/// The cost model of `auto`: the expected time of a decode step of one token, in ms.
struct ExpectedTimes {
  double layers_ms = 0;
  double waits_ms = 0;
  double ms() const { return layers_ms + waits_ms; }
};

/// `low_share`: the share of the routing mass that low versions may answer. `served`: a device
/// serves misses.
ExpectedTimes ExpectedStep(const ExpertSource& source, const Blueprint& b, double low_share,
                           bool served);

/// A blueprint of `options` with another strategy.
absl::StatusOr<Blueprint> TryStrategy(const ExpertSource& source, EngineOptions options,
                                      const std::string& spec);

/// Whether a device would serve the misses of an engine of `options` over the versions of `b`, if
/// its strategy consists of rules. Its steps can then be captured, and none waits for the host.
bool DeviceServes(const ExpertSource& source, const EngineOptions& options, const Blueprint& b);

class VersionOffers {
 public:
  /// TryStrategy with the source and options bound; takes a spec.
  using Try = std::function<absl::StatusOr<Blueprint>(const std::string& spec)>;

  /// `options` has a budget in bytes, the same for all versions. `calibration`: the losses of
  /// versions; null: not known. The arguments must outlive the offers.
  VersionOffers(const ExpertSource& source, const EngineOptions& options, double accepted_loss,
                const Calibration* calibration, Try attempt)
      : source_(source),
        options_(options),
        accepted_(accepted_loss),
        calibration_(calibration),
        attempt_(std::move(attempt)) {}

  /// Adds the first offer: the strategy that is served if no loss is accepted.
  void AddExact(const Blueprint& b);
  /// Adds the versions below `base`. If no accepted one fits the budget, adds strategies that
  /// answer light misses in a low version.
  void AddLossy(int base);

  /// The chosen offer.
  StrategyChoice Take() const;

 private:
  /// The expected loss of perplexity; no value if it is not known.
  std::optional<double> LossOf(int version) const;
  void AddVersion(int version);
  void AddGraded(int high, int low);
  void Add(const Blueprint& b, double loss, double low_share, const std::string& what);

  const ExpertSource& source_;
  const EngineOptions& options_;
  const double accepted_;
  const Calibration* const calibration_;
  const Try attempt_;
  std::vector<VersionOffer> offers_;
  std::vector<std::string> whys_;
};

}  // namespace moert

#endif  // MOERT_LIB_ADVISE_VERSION_OFFERS_H_
