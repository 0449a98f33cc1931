// The accounts of a call's requests in shared memory, while one CTA of whole warps decides.
#ifndef MOERT_KERNELS_CUDA_CACHE_CALL_ACCOUNTS_CUH_
#define MOERT_KERNELS_CUDA_CACHE_CALL_ACCOUNTS_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/cache/served_slots.cuh"
#include "kernels/cuda/route/expert_cache.h"
#include "kernels/cuda/route/route_tokens.cuh"

namespace moert::cuda {

static_assert(kFewTokens == 32, "a lane a row");

/// The accounts of a call of few rows. An account is at the index of its first row.
struct CallAccounts {
  __device__ CallAccounts() {}
  int32_t of[kFewTokens];      // the account of a row
  int32_t number[kFewTokens];  // the account's index in AllAccounts
  union {                      // a union, so that nothing is initialized
    LowAccount low[kFewTokens];
  };
  union {
    RequestAccount ruled[kFewTokens];
  };
  int32_t apart;  // no account has two of the rows
};

/// All accounts, in device memory; null: there are none of this kind.
struct AllAccounts {
  LowAccount* low = nullptr;
  RequestAccount* ruled = nullptr;
};

/// Reads the accounts of a call's rows, before the preceding kernels have ended. That is safe: only
/// decisions of earlier calls and the begin of the step write accounts, and these have ended. Done
/// by the first warp; the other threads see the accounts after a barrier.
__device__ __forceinline__ void ReadAccounts(const AllAccounts& all, const int32_t* account_of,
                                             int rows, CallAccounts& call) {
  const int lane = threadIdx.x;
  if (lane >= 32) return;
  const int32_t number = lane < rows ? __ldcg(account_of + lane) : -1 - lane;
  const int first = __ffs(static_cast<int>(__match_any_sync(~0U, number))) - 1;
  const bool apart = __all_sync(~0U, first == lane) != 0;
  if (lane == 0) call.apart = apart ? 1 : 0;
  if (lane >= rows) return;
  call.of[lane] = first;
  if (first != lane) return;
  call.number[lane] = number;
  if (all.low != nullptr) call.low[lane] = LoadFresh(all.low + number);
  if (all.ruled != nullptr) call.ruled[lane] = LoadFresh(all.ruled + number);
}
/// Writes the accounts back. Called by one warp, after all changes.
__device__ __forceinline__ void StoreAccounts(const AllAccounts& all, int rows,
                                              const CallAccounts& call) {
  const int lane = threadIdx.x % 32;
  if (lane >= rows || call.of[lane] != lane) return;
  const int32_t number = call.number[lane];
  if (all.low != nullptr) all.low[number] = call.low[lane];
  if (all.ruled != nullptr) all.ruled[number] = call.ruled[lane];
}

/// The LowCall of `args`, but with the ids, weights and accounts of this call in shared memory.
template <int kPairs>
__device__ __forceinline__ LowCall LowOfCall(const ServeMissesArgs& args,
                                             RoutedPairs<kPairs>& routed, CallAccounts& accounts) {
  LowCall call = args.low.call;
  call.ids = routed.ids;
  call.weights = routed.weights;
  if (call.accounts != nullptr) call.accounts = accounts.low;
  call.account_of = accounts.of;
  return call;
}

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_CACHE_CALL_ACCOUNTS_CUH_
