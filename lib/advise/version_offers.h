// Offers that a budget holds within an accepted loss: strategies over a source's versions, with the
// expected time and the predicted loss of each.
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

/// The cost model of `auto`: what a decode step of one token is expected to take, ms.
struct ExpectedTimes {
  double layers_ms = 0;
  double waits_ms = 0;
  double ms() const { return layers_ms + waits_ms; }
};

/// `low_share`: of the routing mass, that low versions may answer. `served`: a device answers
/// misses.
ExpectedTimes ExpectedStep(const ExpertSource& source, const Blueprint& b, double low_share,
                           bool served);

/// A blueprint of `options` with another strategy.
absl::StatusOr<Blueprint> TryStrategy(const ExpertSource& source, EngineOptions options,
                                      const std::string& spec);

/// Whether an engine of `options` over the versions of `b` has its misses served by a device, where
/// its strategy goes by rules: then its steps can be captured, and none waits for the host.
bool DeviceServes(const ExpertSource& source, const EngineOptions& options, const Blueprint& b);

class VersionOffers {
 public:
  /// TryStrategy of the source and options, by a spec.
  using Try = std::function<absl::StatusOr<Blueprint>(const std::string& spec)>;

  /// `options` has a budget in bytes, the same for all versions. `calibration`: what versions lose;
  /// null: not known. The arguments outlive the offers.
  VersionOffers(const ExpertSource& source, const EngineOptions& options, double accepted_loss,
                const Calibration* calibration, Try attempt)
      : source_(source),
        options_(options),
        accepted_(accepted_loss),
        calibration_(calibration),
        attempt_(std::move(attempt)) {}

  /// The first offer: what is served where no loss is accepted.
  void AddExact(const Blueprint& b);
  /// Versions below `base`; where the budget holds none that is accepted, light misses in one.
  void AddLossy(int base);

  /// The offer taken.
  StrategyChoice Take() const;

 private:
  /// The expected loss of perplexity; nothing where it is not known.
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
