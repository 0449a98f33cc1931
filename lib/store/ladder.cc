// Several versions whose blocks share one pool, limited by bytes. Once all transitions have ended,
// the experts together never take more than the capacity; the pool's bytes beyond the capacity are
// for the second copies of experts in transition.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "store/block_pool.h"
#include "store/resident_versions.h"

namespace moert {
namespace {

class Ladder final : public ResidentVersions {
 public:
  Ladder(const MoeModelSpec* model, PrecisionPolicy* policy, const TransitionOptions& options,
         VersionedStore* store)
      : ResidentVersions(model, policy, options, store) {
    for (int l = 0; l < model->num_layers(); ++l) {
      for (int e = 0; e < model->layers[l].num_experts; ++e) {
        for (int v = 0; v < store->num_versions(); ++v) {
          bytes_.push_back(store->BlockBytes({l, e}, v));
        }
        largest_ = std::max(largest_, BytesIn(Index({l, e}), top()));
        smallest_ = std::max(smallest_, BytesIn(Index({l, e}), 0));
      }
    }
  }

  absl::Status Resize(int64_t high, int64_t slots, int64_t low_slots) override {
    // A failure leaves the old size; experts that were demoted by then are promoted again later.
    const int64_t old_bytes = capacity_bytes_;
    std::vector<int32_t> before = capacity_;
    SetRoom(high);
    absl::Cleanup keep = [&] {
      capacity_bytes_ = old_bytes;
      capacity_.swap(before);
    };
    ForgetQueued();
    // An expert whose switch failed keeps its old version: no reason to refuse a budget.
    (void)Drain();
    MOERT_RETURN_IF_ERROR(Shrink());
    store_->pool(0).SetByteLimit(slots * largest_ + low_slots * smallest_);
    std::move(keep).Cancel();
    return absl::OkStatus();
  }

  bool Aim(int64_t high, int64_t slots, int64_t low_slots) override {
    ForgetQueued();
    SetRoom(high);
    const int64_t bytes = slots * largest_ + low_slots * smallest_;
    // A larger limit applies from now on, a smaller one once the taken blocks fit.
    if (bytes > store_->pool(0).limit_bytes()) store_->pool(0).SetByteLimit(bytes);
    for (const Way& way : WaysDown()) {
      if (Taken(rung_) <= capacity_bytes_) break;
      if (!Moving(way.key)) Queue(way.key, way.rung);
    }
    if (Taken(rung_) > capacity_bytes_ || store_->pool(0).Over(store_->pool(0).limit(), bytes)) {
      return false;
    }
    store_->pool(0).SetByteLimit(bytes);
    return true;
  }

 private:
  void SetRoom(int64_t high) override {
    capacity_ = Dealt(high);
    capacity_bytes_ = high * largest_ + (model_->total_experts() - high) * smallest_;
  }

  absl::Status ChooseInitial() override {
    PolicyContext context;
    context.model = model_;
    MOERT_ASSIGN_OR_RETURN(const PrecisionDecision initial, Ask(context, PrecisionMoment::kOpen));
    for (int l = 0; l < model_->num_layers(); ++l) {
      for (int e = 0; e < model_->layers[l].num_experts; ++e) SetRung({l, e}, 0);
    }
    for (const ExpertKey key : initial.promote) {
      if (!Legal(key) || RungOf(key) == top()) {
        return InvalidArgument(
            "initial versions: layer {} expert {} does not exist, or is promoted beyond the "
            "highest of {} versions",
            key.layer, key.expert, store_->num_versions());
      }
      SetRung(key, RungOf(key) + 1);
    }
    if (const int64_t taken = Taken(rung_); taken > capacity_bytes_) {
      return InvalidArgument("initial versions: they take {} bytes, the budget holds {}", taken,
                             capacity_bytes_);
    }
    return absl::OkStatus();
  }

  void Decide(const PrecisionDecision& decision) override {
    const std::vector<int> wanted = Wanted(decision);
    int64_t room = capacity_bytes_ - Taken(rung_);
    for (const ExpertKey key : decision.demote) {
      if (!Legal(key) || wanted[Index(key)] >= RungOf(key)) continue;
      room -= Growth(key, RungOf(key), wanted[Index(key)]);
      Queue(key, wanted[Index(key)]);
    }
    for (const ExpertKey key : decision.promote) {
      if (!Legal(key) || wanted[Index(key)] <= RungOf(key)) continue;
      const int64_t growth = Growth(key, RungOf(key), wanted[Index(key)]);
      if (growth > room) {
        ++stats_.deferred;  // for instance if an expert to be demoted is still in transition
        continue;
      }
      room -= growth;
      Queue(key, wanted[Index(key)]);
    }
  }

  /// A promotion may start if it fits even if all started demotions fail. So after any failure the
  /// rest of the pool can hold a second copy of any expert, and transitions can always go on.
  int64_t GrowthRoom() const override {
    int64_t room = capacity_bytes_ - Taken(settled_);
    for (const ExpertKey key : moving()) room -= std::max<int64_t>(0, GrowthOf(key));
    return room;
  }
  int64_t GrowthOf(ExpertKey key) const override {
    return Growth(key, SettledOf(key), RungOf(key));
  }

  /// Demotes experts until all fit the capacity.
  absl::Status Shrink() {
    for (const Way& way : WaysDown()) {
      if (Taken(settled_) <= capacity_bytes_) return absl::OkStatus();
      MOERT_RETURN_IF_ERROR(BringDown(way.key, way.rung));
    }
    return absl::OkStatus();
  }

  struct Way {
    ExpertKey key;
    int rung;
  };
  /// The demotions to try, in order, each with its rung: experts that the policy names, then those
  /// used least.
  std::vector<Way> WaysDown() {
    PolicyContext context;
    context.model = model_;
    const absl::StatusOr<PrecisionDecision> decision = Ask(context, PrecisionMoment::kShrink);
    stats_.policy_fallbacks += !decision.ok();
    const PrecisionDecision named = decision.ok() ? *decision : PrecisionDecision();
    const std::vector<int> wanted = Wanted(named);
    std::vector<Way> ways;
    const auto add = [&](ExpertKey key, int rung) {
      if (Legal(key) && rung < SettledOf(key)) ways.push_back({key, rung});
    };
    for (const ExpertKey key : named.demote) {
      if (Legal(key)) add(key, wanted[Index(key)]);
    }
    for (const ExpertKey key : LeastUsedFirst()) add(key, 0);
    return ways;
  }

  absl::Status BringDown(ExpertKey key, int rung) {
    if (rung >= SettledOf(key)) return absl::OkStatus();  // it is no higher already
    MOERT_ASSIGN_OR_RETURN(const bool demoted, DemoteNow(key, rung));
    if (demoted) return absl::OkStatus();
    return absl::ResourceExhaustedError("no spare block to demote an expert into");
  }

  /// [expert]: the rungs that a decision results in. An expert in transition keeps its rung.
  std::vector<int> Wanted(const PrecisionDecision& decision) {
    std::vector<int> wanted(rung_.begin(), rung_.end());
    const auto move = [&](absl::Span<const ExpertKey> keys, int by) {
      for (const ExpertKey key : keys) {
        const int to = Legal(key) ? wanted[Index(key)] + by : -1;
        if (to < 0 || to > top()) {
          ++stats_.policy_fallbacks;
        } else if (Moving(key)) {
          ++stats_.deferred;
        } else {
          wanted[Index(key)] = to;
        }
      }
    };
    move(decision.demote, -1);
    move(decision.promote, +1);
    return wanted;
  }

  std::vector<ExpertKey> LeastUsedFirst() const {
    std::vector<ExpertKey> keys;
    for (int32_t l = model_->num_layers() - 1; l >= 0; --l) {
      for (int32_t e = model_->layers[l].num_experts - 1; e >= 0; --e) keys.push_back({l, e});
    }
    std::stable_sort(keys.begin(), keys.end(), [&](ExpertKey a, ExpertKey b) {
      return selections_[Index(a)] < selections_[Index(b)];
    });
    return keys;
  }

  /// Bytes of expert `index` in the version of a rung.
  int64_t BytesIn(int64_t index, int rung) const {
    return bytes_[index * store_->num_versions() + VersionOf(rung)];
  }
  int64_t Growth(ExpertKey key, int from, int to) const {
    return BytesIn(Index(key), to) - BytesIn(Index(key), from);
  }
  int64_t Taken(absl::Span<const uint8_t> rungs) const {
    int64_t taken = 0;
    for (size_t i = 0; i < rungs.size(); ++i) taken += BytesIn(static_cast<int64_t>(i), rungs[i]);
    return taken;
  }

  int64_t largest_ = 0;   // bytes of an expert in the version of the most bits
  int64_t smallest_ = 0;  // in the version of the fewest
};

}  // namespace

std::unique_ptr<VersionManager> MakeLadder(const MoeModelSpec* model, PrecisionPolicy* policy,
                                           const TransitionOptions& options,
                                           VersionedStore* store) {
  return std::make_unique<Ladder>(model, policy, options, store);
}

}  // namespace moert
