// VersionManager: moves experts between versions behind stable handles (DynaExq Sec. 4). It
// drives the store's version calls; who should be high is decided by policies.
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

/// Served versions are in the order of their bits, 0 the high one. Called under the engine's lock.
class VersionManager {
 public:
  virtual ~VersionManager() = default;
  /// Brings every expert, in one version. `high` experts may be high.
  virtual absl::Status Preload(int64_t high) = 0;
  /// Hears of every layer that Preload has brought; an error ends it.
  void WatchPreload(std::function<absl::Status(int layer)> watch) { watch_ = std::move(watch); }
  /// Before the store opens a step: hands over the switches that are ready. A device is idle
  /// meanwhile, so what can be done elsewhere is.
  virtual void BeforeStep(const PolicyContext& context) = 0;
  /// After it: blocks have been reclaimed; starts what fits.
  virtual void AfterStepOpened(const PolicyContext& context) = 0;
  /// After the store closed a step: decides. The device may still be running it.
  virtual void AfterStep(const PolicyContext& context) {}
  /// A layer's true routing.
  virtual void OnRouting(const PolicyContext& context, const RoutingView& routing) = 0;
  /// A prefetch policy would like this expert high.
  virtual void Want(const PolicyContext& context, ExpertKey key, float score) {}
  /// Fits the pools to a new plan; no step is open. `high` experts may be high.
  virtual absl::Status Resize(int64_t high, int64_t slots, int64_t low_slots) = 0;
  /// The same at a boundary of steps that are open: whoever has to leave begins to, as far as there
  /// are blocks, and goes when its last reader has ended. Asked again at every boundary until it
  /// returns true: all fit. Waits for nobody.
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

/// Every expert in exactly one of two versions, each with a pool, the hottest high (kHotSet).
/// Borrows all; spare >= 1.
std::unique_ptr<VersionManager> MakeHotSet(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options, VersionedStore* store);

/// Every expert in exactly one of several versions, whose blocks share a pool's bytes (kHotSet).
/// Likewise.
std::unique_ptr<VersionManager> MakeLadder(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options, VersionedStore* store);

/// Every expert low, and a cache of high versions fed by low answers (kLowPlusCache).
std::unique_ptr<VersionManager> MakeHighCache(const MoeModelSpec* model,
                                              const TransitionOptions& options,
                                              const HardwareProfile* profile,
                                              VersionedStore* store);

/// Paces transitions: bytes allowed by `now` at a byte rate, with one transfer of credit.
class TransitionPacer {
 public:
  explicit TransitionPacer(double max_gbps) : bytes_per_ns_(max_gbps) {}
  bool Allows(int64_t now_ns) const { return bytes_per_ns_ <= 0 || now_ns >= free_ns_; }
  void Spend(int64_t now_ns, int64_t bytes) {
    if (bytes_per_ns_ <= 0) return;
    constexpr double kMostNs = 1e18;  // a rate may be as low as any number
    const double ns = std::min(kMostNs, static_cast<double>(bytes) / bytes_per_ns_);
    free_ns_ = std::max(now_ns, free_ns_) + static_cast<int64_t>(ns);
  }

 private:
  const double bytes_per_ns_;
  int64_t free_ns_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_VERSION_MANAGER_H_
