// Never-stall: the low version answers a miss, and the high one is fetched after the call.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "store/block_pool.h"
#include "store/version_manager.h"

namespace moert {
namespace {

constexpr int kHigh = 0;
constexpr int kLow = 1;

class HighCache final : public VersionManager {
 public:
  HighCache(const MoeModelSpec* model, const TransitionOptions& options,
            const HardwareProfile* profile, VersionedStore* store)
      : model_(model), profile_(profile), store_(store), pacer_(options.max_gbps) {}

  absl::Status Preload(int64_t high) override {
    for (int l = 0; l < model_->num_layers(); ++l) {
      for (int e = 0; e < model_->layers[l].num_experts; ++e) {
        if (!store_->StartVersion({l, e}, kLow, LoadReason::kBackground)) {
          return NoMemoryFor(l, e, store_->pool(kLow));
        }
      }
      while (store_->Wait()) {
      }
      for (int e = 0; e < model_->layers[l].num_experts; ++e) {
        MOERT_RETURN_IF_ERROR(store_->TakeFailure({l, e}));
      }
      MOERT_RETURN_IF_ERROR(Loaded(l));
    }
    return absl::OkStatus();
  }

  void BeforeStep(const PolicyContext& context) override {
    store_->Pump();
    const auto settled = [&](ExpertKey key) {
      const VersionState state = store_->State(key, kHigh);
      if (state == VersionState::kLoading) return false;
      if (state == VersionState::kResident) {
        store_->Switch(key, kHigh, /*drop_old=*/false);
        ++stats_.promotions;
      } else {
        (void)store_->TakeFailure(key);
        ++stats_.deferred;
      }
      return true;
    };
    moving_.erase(std::remove_if(moving_.begin(), moving_.end(), settled), moving_.end());
    ChooseWanted(context);
    MakeRoom(context);
  }

  void AfterStepOpened(const PolicyContext& context) override {
    // Starts the most wanted first, as many as the link can carry in a step: more would only queue
    // up and be stale when they arrive.
    const int64_t window_ns =
        model_->num_layers() * profile_->LayerNs(context.phase == Phase::kPrefill, last_tokens_);
    int64_t in_flight_ns = 0;
    for (const ExpertKey key : moving_) {
      in_flight_ns += profile_->TransferNs(store_->layout(key, kHigh).bytes);
    }
    for (const Wish& wish : chosen_) {
      const int64_t bytes = store_->layout(wish.key, kHigh).bytes;
      if (!pacer_.Allows(context.now_ns)) break;
      if (!moving_.empty() && in_flight_ns + profile_->TransferNs(bytes) > window_ns) break;
      if (store_->held(wish.key.layer) >= store_->capacity(wish.key.layer)) continue;
      moving_.reserve(moving_.size() + 1);  // so that push_back cannot fail after the start
      if (!store_->StartVersion(wish.key, kHigh, LoadReason::kBackground)) {
        ++stats_.deferred;
        continue;
      }
      in_flight_ns += profile_->TransferNs(bytes);
      pacer_.Spend(context.now_ns, bytes);
      moving_.push_back(wish.key);
    }
    chosen_.clear();
  }

  void OnRouting(const PolicyContext& context, const RoutingView& routing) override {
    last_tokens_ = routing.tokens;
    for (size_t e = 0; e < routing.counts.size(); ++e) {
      if (routing.counts[e] == 0) continue;
      Want(context, {context.layer, static_cast<int32_t>(e)},
           static_cast<float>(routing.counts[e]));
    }
  }

  void Want(const PolicyContext& context, ExpertKey key, float score) override {
    if (store_->State(key, kHigh) == VersionState::kAbsent) wishes_.push_back({key, score});
  }

  absl::Status Resize(int64_t high, int64_t slots, int64_t low_slots) override {
    while (store_->Wait()) {
    }
    PolicyContext context;
    context.model = model_;
    BeforeStep(context);
    chosen_.clear();
    store_->CloseStep(store_->OpenStep());
    std::vector<int> before = store_->capacities();
    absl::Cleanup keep = [&] { store_->PutBack(std::move(before)); };
    store_->SetCapacity(slots);
    while (store_->pool(kHigh).taken() > slots) {
      int over = -1;
      for (int l = 0; l < model_->num_layers() && over < 0; ++l) {
        if (store_->held(l) > store_->capacity(l)) over = l;
      }
      context.layer = std::max(over, 0);
      const ExpertKey victim =
          store_->ChooseVictim(over, {context.layer, -1}, LoadReason::kDemand, context);
      if (victim.expert < 0) return absl::InternalError("high versions that nobody may evict");
      store_->Switch(victim, kLow, /*drop_old=*/true);
      ++stats_.demotions;
      store_->CloseStep(store_->OpenStep());
    }
    store_->pool(kHigh).SetLimit(slots);
    std::move(keep).Cancel();
    return absl::OkStatus();
  }

  bool Aim(int64_t /*high*/, int64_t slots, int64_t /*low_slots*/) override {
    store_->SetCapacity(slots);
    store_->pool(kHigh).SetLimit(slots);
    PolicyContext context;
    context.model = model_;
    for (int l = 0; l < model_->num_layers(); ++l) {
      context.layer = l;
      for (int over = Staying(l) - store_->capacity(l); over > 0; --over) {
        const ExpertKey victim = store_->ChooseVictim(l, {l, -1}, LoadReason::kDemand, context);
        if (victim.expert < 0) break;  // the others still switch
        store_->Switch(victim, kLow, /*drop_old=*/true);
        ++stats_.demotions;
      }
    }
    return store_->pool(kHigh).taken() <= slots;
  }

 private:
  /// The number of a layer's experts that are high, or becoming high, and not leaving.
  int Staying(int layer) const {
    int staying = 0;
    for (int e = 0; e < model_->layers[layer].num_experts; ++e) {
      const VersionState state = store_->State({layer, e}, kHigh);
      staying += state == VersionState::kLoading ||
                 (state == VersionState::kResident && store_->Coming({layer, e}) == kHigh);
    }
    return staying;
  }

  struct Wish {
    ExpertKey key;
    float score = 0;
  };

  /// Merges the wishes: one entry per expert with the summed score, best first.
  void ChooseWanted(const PolicyContext& context) {
    std::sort(wishes_.begin(), wishes_.end(), [](const Wish& a, const Wish& b) {
      return std::pair(a.key.layer, a.key.expert) < std::pair(b.key.layer, b.key.expert);
    });
    chosen_.clear();
    for (const Wish& wish : wishes_) {
      if (store_->State(wish.key, kHigh) != VersionState::kAbsent) continue;
      if (!chosen_.empty() && chosen_.back().key == wish.key) {
        chosen_.back().score += wish.score;
      } else {
        chosen_.push_back(wish);
      }
    }
    std::stable_sort(chosen_.begin(), chosen_.end(),
                     [](const Wish& a, const Wish& b) { return a.score > b.score; });
    wishes_.clear();
  }

  /// A layer at its capacity demotes one victim at this boundary for each wish that the coming step
  /// can start.
  void MakeRoom(PolicyContext context) {
    std::vector<int> free(model_->num_layers());
    for (int l = 0; l < model_->num_layers(); ++l) free[l] = store_->capacity(l) - store_->held(l);
    const int64_t bytes = chosen_.empty() ? 1 : store_->layout(chosen_[0].key, kHigh).bytes;
    const int64_t window_ns =
        model_->num_layers() * profile_->LayerNs(context.phase == Phase::kPrefill, last_tokens_);
    int64_t budget =
        std::max<int64_t>(1, window_ns / std::max<int64_t>(1, profile_->TransferNs(bytes))) -
        static_cast<int64_t>(moving_.size());
    for (const Wish& wish : chosen_) {
      if (budget-- <= 0) break;
      if (free[wish.key.layer]-- > 0) continue;
      context.layer = wish.key.layer;
      const ExpertKey victim =
          store_->ChooseVictim(wish.key.layer, wish.key, LoadReason::kPrefetch, context);
      if (victim.expert < 0) continue;
      store_->Switch(victim, kLow, /*drop_old=*/true);
      ++stats_.demotions;
      ++stats_.evictions;
    }
  }

  const MoeModelSpec* model_;
  const HardwareProfile* profile_;
  VersionedStore* store_;
  TransitionPacer pacer_;
  std::vector<Wish> wishes_;  // since the last boundary
  std::vector<Wish> chosen_;  // of this boundary, best first
  std::vector<ExpertKey> moving_;
  int64_t last_tokens_ = 1;
};

}  // namespace

std::unique_ptr<VersionManager> MakeHighCache(const MoeModelSpec* model,
                                              const TransitionOptions& options,
                                              const HardwareProfile* profile,
                                              VersionedStore* store) {
  return std::make_unique<HighCache>(model, options, profile, store);
}

}  // namespace moert
