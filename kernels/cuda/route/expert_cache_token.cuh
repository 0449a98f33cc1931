// One token of a call under the expert-cache rule, and the account of its request.
//
// Sums and comparisons are those of the host's rule, operation by operation. Intrinsics keep the
// compiler from contracting a product and a sum into an fma, which rounds differently.
#ifndef MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_TOKEN_CUH_
#define MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_TOKEN_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/route/choose_experts.cuh"
#include "kernels/cuda/route/expert_cache.h"

namespace moert::cuda::expert_cache {

__device__ __forceinline__ bool Bit(const uint32_t* words, int e) {
  return words[e / 32] >> (e % 32) & 1;
}

/// SubstitutionAccount::Allows.
inline __device__ bool Allows(const ExpertCacheArgs& args, const RequestAccount& account,
                              double weight) {
  constexpr double kSlack = 1e-9;
  const double slots =
      __dadd_rn(__dmul_rn(args.max_slot_share, static_cast<double>(account.slots)), kSlack);
  const double mass = __dmul_rn(__dmul_rn(args.max_mass_share, account.mass), 1 + kSlack);
  return static_cast<double>(account.substituted + 1) <= slots &&
         __dadd_rn(account.mass_substituted, weight) <= mass;
}

inline __device__ RequestAccount& AccountOf(const ExpertCacheArgs& args, int t) {
  return args.accounts[args.account_of == nullptr ? 0 : args.account_of[t]];
}

/// One token in a warp's registers: lane l has experts l, l + 32, ... and slot l.
template <int kPerLane>
class Token {
 public:
  __device__ Token(const ExpertCacheArgs& args, int t, int lane)
      : args_(args), lane_(lane), k_(args.routing.top_k), state_(args.scratch[t]) {
    const float* row = args.scores + static_cast<int64_t>(t) * args.routing.num_experts;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane + 32 * i;
      score_[i] = e < args.routing.num_experts ? row[e] : 0;
    }
    at_ = static_cast<int64_t>(t) * k_ + lane;
    if (lane < k_) id_ = args.ids[at_];
    float id_score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float other = __shfl_sync(kFull, score_[i], id_ % 32);
      if (id_ / 32 == i) id_score = other;
    }
    if (lane < k_) id_score_ = id_score;
  }

  /// Computes the token's thresholds, and adds its top-score experts to C.
  __device__ void View(float* group_keys, float* group_ranks, uint32_t* top) {
    const int experts = args_.routing.num_experts;
    float key[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane_ + 32 * i;
      const float* bias = args_.routing.selection_bias;
      key[i] = e < experts ? score_[i] + (bias == nullptr ? 0.0f : bias[e]) : -INFINITY;
    }
    if (args_.routing.top_groups != args_.routing.num_groups) {
      MaskGroups(args_.routing, key, lane_, group_keys, group_ranks);
    }
    uint32_t ineligible = 0;
    int eligible = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t word = __ballot_sync(kFull, key[i] != -INFINITY);
      eligible += __popc(word);
      if (key[i] == -INFINITY) ineligible |= 1u << i;
      if (lane_ == 0) state_.eligible[i] = word;
    }
    const bool has_beta = eligible > k_;
    float beta = 0;
    if (has_beta) {
      uint32_t taken = ineligible;
      // If experts are chosen by their scores alone, the k best are the token's own.
      const bool known = ByScore(args_.routing.kind) && args_.routing.selection_bias == nullptr;
      if (known) taken |= Own();
      for (int j = known ? k_ : 0; j <= k_; ++j) {
        beta = Take(score_, Highest(score_, taken, experts, lane_), lane_, &taken);
      }
    }
    if (lane_ < k_) {
      if (!has_beta || id_score_ > TopLimit(beta)) atomicOr(&top[id_ / 32], 1u << (id_ % 32));
      args_.own_ids[at_] = id_;
      args_.own_weights[at_] = args_.weights[at_];
      if (args_.host_own_ids != nullptr) {
        args_.host_own_ids[at_] = id_;
        args_.host_own_weights[at_] = args_.weights[at_];
      }
    }
    if (lane_ == 0) {
      state_.beta = beta;
      state_.has_beta = has_beta;
      state_.changed = 0;
      state_.slots = state_.taken = state_.substitutes = 0;
    }
  }

  /// Adds the token's slots and mass to the account.
  __device__ void Enter(RequestAccount* account) const {
    account->slots += k_;
    const float weight = lane_ < k_ ? args_.weights[at_] : 0;
    for (int j = 0; j < k_; ++j) {
      account->mass = __dadd_rn(account->mass, static_cast<double>(__shfl_sync(kFull, weight, j)));
    }
  }

  /// Finds the slots that may be replaced, worst first, and counts the substitutes at hand.
  __device__ void FindReplaceable(const uint32_t* resident, const uint32_t* top) {
    const float beta = state_.beta;
    const bool replaceable = lane_ < k_ && state_.has_beta && args_.alpha != 0 &&
                             id_score_ <= TopLimit(beta) && !Bit(resident, id_) && !Bit(top, id_);
    const uint32_t slots = __ballot_sync(kFull, replaceable);
    int rank = 0;
    for (int j = 0; j < k_; ++j) {
      const float other = __shfl_sync(kFull, id_score_, j);
      // Among equals the later slot goes first.
      rank += (slots >> j & 1) && (other < id_score_ || (other == id_score_ && j > lane_));
    }
    if (replaceable) state_.slot[rank] = static_cast<uint8_t>(lane_);
    int substitutes = 0;
    if (slots != 0) substitutes = Count(AtHand(resident, top));
    __syncwarp();
    if (lane_ == 0) {
      state_.slots = __popc(slots);
      state_.substitutes = substitutes;
    }
    __syncwarp();
  }

  /// Books as many substitutions as the account allows. Returns how many.
  __device__ int Book(RequestAccount* account) const {
    const int pairs = min(state_.slots, state_.substitutes);
    int n = 0;
    for (; n < pairs; ++n) {
      if (!BookOne(account, state_.slot[n])) break;
    }
    return n;
  }

  /// The first pass: the n worst slots get the best experts at hand, the best of these slots the
  /// best expert.
  __device__ void SubstituteResident(const uint32_t* resident, const uint32_t* top, int n) {
    if (n == 0) return;
    uint32_t others = ~AtHand(resident, top);
    for (int i = 0; i < n; ++i) {
      const int e = Highest(score_, others, args_.routing.num_experts, lane_);
      if (lane_ == e % 32) others |= 1u << (e / 32);
      Substitute(state_.slot[n - 1 - i], e);
    }
    __syncwarp();
    if (lane_ == 0) {
      state_.taken = n;
      state_.changed = 1;
    }
    if (lane_ < k_) args_.ids[at_] = id_;
  }

  /// The second pass: experts that would still be fetched are replaced by experts that other tokens
  /// fetch.
  __device__ void GroupWhatIsFetched(const uint32_t* resident, const uint32_t* top,
                                     uint32_t* anchored, int* users, RequestAccount* account) {
    const int slots = state_.slots;
    bool changed = false;
    for (int i = state_.taken; i < slots; ++i) {
      const int slot = state_.slot[i];
      const int displaced = __shfl_sync(kFull, id_, slot);
      if (Bit(anchored, displaced)) continue;
      uint32_t candidates = Candidates();
#pragma unroll
      for (int p = 0; p < kPerLane; ++p) {
        const int e = lane_ + 32 * p;
        if (!(candidates >> p & 1)) continue;
        if (Bit(resident, e) || Bit(top, e) || users[e] == 0 || users[e] < users[displaced]) {
          candidates &= ~(1u << p);
        }
      }
      const int by = MostUsed(candidates, users);
      if (by == kNoExpert) continue;
      if (!BookOne(account, slot)) break;
      Substitute(slot, by);
      changed = true;
      __syncwarp();
      if (lane_ == 0) {
        --users[displaced];
        ++users[by];
        anchored[by / 32] |= 1u << (by % 32);
      }
      __syncwarp();
    }
    if (!changed) return;
    if (lane_ == 0) state_.changed = 1;
    if (lane_ < k_) args_.ids[at_] = id_;
  }

  __device__ void Weigh() const {
    if (!state_.changed || args_.own_score_weights == 0) return;
    float weight = id_score_;
    if (args_.routing.renormalize || args_.routing.kind == DeviceRoutingKind::kTopKSoftmax) {
      float sum = 0;
      for (int j = 0; j < k_; ++j) sum = __fadd_rn(sum, __shfl_sync(kFull, weight, j));
      weight = __fdiv_rn(weight, __fadd_rn(sum, 1e-20f));
    }
    if (args_.routing.scaling != 1) weight = __fmul_rn(weight, args_.routing.scaling);
    if (lane_ < k_) args_.weights[at_] = weight;
  }

 private:
  __device__ float TopLimit(float beta) const { return __fmul_rn(__fadd_rn(1, args_.alpha), beta); }

  /// Bit i: the lane's i-th expert is in a slot of the token.
  __device__ uint32_t Own() const {
    uint32_t own = 0;
    for (int j = 0; j < k_; ++j) {
      const int e = __shfl_sync(kFull, id_, j);
      if (e % 32 == lane_) own |= 1u << (e / 32);
    }
    return own;
  }

  /// Bit i: the lane's i-th expert is inactive, eligible and in the band.
  __device__ uint32_t Candidates() const {
    const float beta = state_.beta;
    const float floor = __fmul_rn(__fsub_rn(1, args_.alpha), beta);
    uint32_t active = 0;
    const int32_t own = lane_ < k_ ? args_.own_ids[at_] : 0;
    for (int j = 0; j < k_; ++j) {
      const int before = __shfl_sync(kFull, own, j);
      const int now = __shfl_sync(kFull, id_, j);
      if (before % 32 == lane_) active |= 1u << (before / 32);
      if (now % 32 == lane_) active |= 1u << (now / 32);
    }
    uint32_t candidates = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const bool in_band = score_[i] >= floor && score_[i] <= beta;
      if (in_band && (state_.eligible[i] >> lane_ & 1)) candidates |= 1u << i;
    }
    return candidates & ~active;
  }

  __device__ uint32_t AtHand(const uint32_t* resident, const uint32_t* top) const {
    uint32_t at_hand = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) at_hand |= ((resident[i] | top[i]) >> lane_ & 1) << i;
    return Candidates() & at_hand;
  }

  __device__ static int Count(uint32_t mine) {
    return static_cast<int>(__reduce_add_sync(kFull, static_cast<unsigned>(__popc(mine))));
  }

  __device__ bool BookOne(RequestAccount* account, int slot) const {
    const auto weight =
        static_cast<double>(__shfl_sync(kFull, lane_ < k_ ? args_.own_weights[at_] : 0.0f, slot));
    if (!Allows(args_, *account, weight)) return false;
    ++account->substituted;
    account->mass_substituted = __dadd_rn(account->mass_substituted, weight);
    return true;
  }

  __device__ void Substitute(int slot, int by) {
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane_ + 32 * i == by) score = score_[i];
    }
    score = __shfl_sync(kFull, score, by % 32);
    if (lane_ != slot) return;
    id_ = by;
    id_score_ = score;
  }

  /// The candidate with the most users, then the highest score, then the lowest index.
  __device__ int MostUsed(uint32_t candidates, const int* users) const {
    int best_users = 0, best = kNoExpert;
    float best_score = 0;
    const auto better = [&](int u, float s, int e) {
      if (e == kNoExpert || best == kNoExpert) return e != kNoExpert;
      if (u != best_users) return u > best_users;
      return s != best_score ? s > best_score : e < best;
    };
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = lane_ + 32 * i;
      if ((candidates >> i & 1) && better(users[e], score_[i], e)) {
        best_users = users[e];
        best_score = score_[i];
        best = e;
      }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const int u = __shfl_xor_sync(kFull, best_users, d);
      const float s = __shfl_xor_sync(kFull, best_score, d);
      const int e = __shfl_xor_sync(kFull, best, d);
      if (better(u, s, e)) {
        best_users = u;
        best_score = s;
        best = e;
      }
    }
    return best;
  }

  const ExpertCacheArgs& args_;
  const int lane_;
  const int k_;
  ExpertCacheToken& state_;
  float score_[kPerLane];
  int64_t at_ = 0;      // of the lane's slot
  int32_t id_ = 0;      // of the lane's slot
  float id_score_ = 0;  // likewise
};

/// Keeps an account in the registers of one warp for as long as successive tokens use it.
class OpenAccount {
 public:
  __device__ OpenAccount(const ExpertCacheArgs& args, int lane) : args_(args), lane_(lane) {}
  __device__ ~OpenAccount() { Close(); }
  __device__ RequestAccount* Of(int t) {
    RequestAccount* at = &AccountOf(args_, t);
    if (at == at_) return &account_;
    Close();
    at_ = at;
    account_ = *at;
    return &account_;
  }

 private:
  __device__ void Close() {
    __syncwarp();
    if (at_ != nullptr && lane_ == 0) *at_ = account_;
    __syncwarp();
  }

  const ExpertCacheArgs& args_;
  const int lane_;
  RequestAccount* at_ = nullptr;
  RequestAccount account_;
};

}  // namespace moert::cuda::expert_cache

#endif  // MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_TOKEN_CUH_
