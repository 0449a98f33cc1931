// The expert-cache router rule on the device, after LaunchTopK. route/expert_cache_rule.h says what
// it does; given the same scores, the choices here are bit-identical. The rule reads which experts
// are resident from the residency table, or from the slot table where the device serves misses. The
// requests' accounts are in device memory, so a call needs nothing from the host.
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
  uint32_t resident[kFewExperts / 32];   // the experts that the rule took as resident
  double worst_slot_share;               // any request reached so far
  double worst_mass_share;
};

/// A token's state between the passes over its slots. Scratch.
struct ExpertCacheToken {
  float beta;
  int32_t has_beta;     // 0: no more experts are eligible than are chosen
  int32_t slots;        // replaceable ones
  int32_t taken;        // replaced by the first pass
  int32_t substitutes;  // resident or top-score experts that may replace
  int32_t changed;
  uint32_t eligible[kFewExperts / 32];
  uint8_t slot[kMaxTopK];  // the replaceable ones, worst score first
};

/// The resident experts of a layer whose misses the device serves. All pointers are device memory.
struct ServedResidents {
  const ServedLayer* layer = nullptr;  // null: the host serves them
  const ServedExpert* rows = nullptr;  // [E]
  /// Or null. A record that has not begun is dropped here, so that the rule and the decision after
  /// it see the same state: its victim stays. A record that has begun counts as resident, its
  /// victim as absent.
  LayerPrefetch* prefetch = nullptr;
  ServedTally* tally = nullptr;  // counts substitutions
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
  // In pinned host memory, or null: the host does not ask.
  int32_t* host_own_ids = nullptr;
  float* host_own_weights = nullptr;
  ExpertCacheReport* report = nullptr;
};
int LaunchExpertCache(const ExpertCacheArgs& args, CUstream_st* stream);

/// LaunchRouteAndServe with the rule between the choice and the decision, in one launch. The
/// experts must not be given. In `rule`, served.layer and account_of are not null, the pointers to
/// host memory are null, and scores, ids and weights are those of `route`; scratch is not used.
/// Does nothing without tokens.
int LaunchRuleAndServe(const RouteFewArgs& route, const ExpertCacheArgs& rule,
                       const ServeMissesArgs& args, CUstream_st* stream,
                       const PredictArgs* next = nullptr);

/// rows[begin + i] = account[i]. Fresh accounts are set to zero, and with them those of low
/// answers, if there are any. apart: whether no account has two of the rows.
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
