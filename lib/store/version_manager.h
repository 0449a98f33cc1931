// VersionManager: moves experts between versions behind stable handles (DynaExq Sec. 4). It
// drives the store's version calls; policies decide which experts should be high.
#ifndef MOERT_LIB_STORE_VERSION_MANAGER_H_
#define MOERT_LIB_STORE_VERSION_MANAGER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "moert/policy.h"
#include "moert/tools/profile.h"
#include "store/versioned_store.h"

namespace moert {

/// Counts of a manager since it was made.
struct PrecisionStats {
  int64_t promotions = 0;
  int64_t demotions = 0;
  int64_t deferred = 0;   // transitions that found no block, or failed
  int64_t evictions = 0;  // demotions that made room for another expert's high version
  int64_t policy_fallbacks = 0;
};

/// Served versions are in descending order of their bits; 0 is the high one. Called under the
/// engine's lock.
class VersionManager {
 public:
  virtual ~VersionManager() = default;
  /// Loads every expert in one version. `high` experts may be high.
  virtual absl::Status Preload(int64_t high) = 0;
  /// `watch` is called for every layer that Preload has loaded; an error ends the preload.
  void WatchPreload(std::function<absl::Status(int layer)> watch) { watch_ = std::move(watch); }
  /// Called before the store opens a step: hands over the switches that are ready. The device is
  /// idle meanwhile, so this does only work that cannot be done elsewhere.
  virtual void BeforeStep(const PolicyContext& context) = 0;
  /// Called after the store opened a step and reclaimed blocks: starts the transitions that fit.
  virtual void AfterStepOpened(const PolicyContext& context) = 0;
  /// Called after the store closed a step: makes decisions. The device may still be running the
  /// step.
  virtual void AfterStep(const PolicyContext& context) {}
  /// Receives a layer's true routing.
  virtual void OnRouting(const PolicyContext& context, const RoutingView& routing) = 0;
  /// Notes the wish of a prefetch policy to have this expert high.
  virtual void Want(const PolicyContext& context, ExpertKey key, float score) {}
  /// Fits the pools to a new plan; no step may be open. `high` experts may be high.
  virtual absl::Status Resize(int64_t high, int64_t slots, int64_t low_slots) = 0;
  /// The same at a boundary while steps are open: begins demotions as far as there are blocks; an
  /// old version goes after its last reader. Called again at every boundary until it returns true,
  /// when all experts fit. Does not wait.
  virtual bool Aim(int64_t high, int64_t slots, int64_t low_slots) = 0;

  PrecisionStats stats() const { return stats_; }

 protected:
  absl::Status Loaded(int layer) const {
    return watch_ == nullptr ? absl::OkStatus() : watch_(layer);
  }

  PrecisionStats stats_;

 private:
  std::function<absl::Status(int layer)> watch_;
};

/// Every expert is in exactly one of two versions, each with a pool, and the hottest are high
/// (kHotSet). All arguments are borrowed; TransitionOptions::spare must be at least 1.
std::unique_ptr<VersionManager> MakeHotSet(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options, VersionedStore* store);

/// Every expert is in exactly one of several versions, whose blocks share a pool's bytes (kHotSet).
/// The same conditions hold.
std::unique_ptr<VersionManager> MakeLadder(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options, VersionedStore* store);

/// Every expert is low, with a cache of high versions fed by low answers (kLowPlusCache).
std::unique_ptr<VersionManager> MakeHighCache(const MoeModelSpec* model,
                                              const TransitionOptions& options,
                                              const HardwareProfile* profile,
                                              VersionedStore* store);

/// Paces transitions to a rate of bytes, with a credit of one transfer.
class TransitionPacer {
 public:
  explicit TransitionPacer(double max_gbps) : bytes_per_ns_(max_gbps) {}
  bool Allows(int64_t now_ns) const { return bytes_per_ns_ <= 0 || now_ns >= free_ns_; }
  void Spend(int64_t now_ns, int64_t bytes) {
    if (bytes_per_ns_ <= 0) return;
    constexpr double kMostNs = 1e18;  // bounds the time, as a rate may be arbitrarily low
    const double ns = std::min(kMostNs, static_cast<double>(bytes) / bytes_per_ns_);
    free_ns_ = std::max(now_ns, free_ns_) + static_cast<int64_t>(ns);
  }

 private:
  const double bytes_per_ns_;
  int64_t free_ns_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_VERSION_MANAGER_H_
