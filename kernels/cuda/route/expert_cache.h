// The expert-cache router rule on the device, behind LaunchTopK: route/expert_cache_rule.h says
// what it does; the choices here are the same to the bit, given the same scores. It reads which
// experts are resident from the residency table, or from that of the misses that the device serves,
// and the requests' accounts live in device memory, so that a call needs no word from the host.
#ifndef MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_H_
#define MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_H_

#include <cstdint>

#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/route.h"

struct CUstream_st;

namespace moert::cuda {

/// As moert::SubstitutionAccount.
struct RequestAccount {
  int64_t slots = 0;
  int64_t substituted = 0;
  double mass = 0;
  double mass_substituted = 0;
};

/// The host's view of a call. Written to pinned host memory.
struct ExpertCacheReport {
  uint32_t top_score[kFewExperts / 32];  // the set C
  uint32_t resident[kFewExperts / 32];   // what the rule went by
  double worst_slot_share;               // any request reached so far
  double worst_mass_share;
};

/// State that the passes over a token's slots hand on. Scratch.
struct ExpertCacheToken {
  float beta;
  int32_t has_beta;     // 0: as many experts as are eligible
  int32_t slots;        // replaceable ones
  int32_t taken;        // of them, by the first pass
  int32_t substitutes;  // at hand
  int32_t changed;
  uint32_t eligible[kFewExperts / 32];
  uint8_t slot[kMaxTopK];  // the replaceable ones, worst score first
};

/// The resident experts of a layer whose misses the device serves. All pointers are device memory.
struct ServedResidents {
  const ServedLayer* layer = nullptr;  // null: the host serves them
  const ServedExpert* rows = nullptr;  // [E]
  /// Or null. A record that has not begun is dropped here, so that the rule and the decision behind
  /// it see the same: its victim stays. A record that has begun counts as there, its victim not.
  LayerPrefetch* prefetch = nullptr;
  ServedTally* tally = nullptr;  // learns what was substituted
};

struct ExpertCacheArgs {
  DeviceRouting routing;  // not kind 3: sparsemixer has no scores to go by
  int32_t tokens = 0;
  // moert::RoutingRule.
  float alpha = 0;
  double max_slot_share = 1;
  double max_mass_share = 1;
  int32_t second_pass = 0;
  int32_t own_score_weights = 1;

  const float* scores = nullptr;          // [tokens, E], as LaunchTopK left them
  int32_t* ids = nullptr;                 // [tokens, top_k], the model's choice; then the rule's
  float* weights = nullptr;               // likewise
  const ExpertHandle* handles = nullptr;  // [E] of the layer; version 0 counts as resident
  ServedResidents served;                 // in place of handles, where it names a layer
  const int32_t* account_of = nullptr;    // [tokens]; null: account 0
  int32_t one_row_each = 0;               // no account has two of the rows
  const int32_t* rows_apart = nullptr;    // or null: the same, in device memory
  RequestAccount* accounts = nullptr;
  double* worst_shares = nullptr;  // [2] of slots and of mass, kept from call to call

  ExpertCacheToken* scratch = nullptr;  // [tokens]
  int32_t* own_ids = nullptr;           // [tokens, top_k]: the model's choice
  float* own_weights = nullptr;
  // In pinned host memory, or null: nobody asks.
  int32_t* host_own_ids = nullptr;
  float* host_own_weights = nullptr;
  ExpertCacheReport* report = nullptr;
};
int LaunchExpertCache(const ExpertCacheArgs& args, CUstream_st* stream);

/// LaunchRouteAndServe with the rule between the choice and the decision, in one launch: of the
/// tokens' own choice, served.layer and account_of not null, nothing for the host, and the scores,
/// ids and weights of `route`. Scratch is not used. No tokens: does nothing.
int LaunchRuleAndServe(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                       const ServeMissesArgs& args, CUstream_st* stream,
                       const PredictArgs* next = nullptr);

/// rows[begin + i] = account[i]; accounts that are fresh begin at nothing, and those of low answers
/// where there are any. apart: whether no account has two of the rows.
struct AccountRows {
  static constexpr int kMax = 256;
  int32_t count = 0;
  int32_t begin = 0;
  int32_t one_row_each = 0;
  int32_t account[kMax];
  uint32_t fresh[kMax / 32];
};
int LaunchSetAccounts(int32_t* rows, int32_t* apart, RequestAccount* accounts,
                      LowAccount* low_accounts, const AccountRows& set, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_EXPERT_CACHE_H_
