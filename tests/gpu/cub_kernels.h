// The library's own sums, places and orders within a CTA, and CUB's for the same: see cub_test.cc.
#ifndef MOERT_TESTS_GPU_CUB_KERNELS_H_
#define MOERT_TESTS_GPU_CUB_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moert::test {

/// One CTA that does the same over and over, each round behind the one before. Both ways leave the
/// same numbers.
struct CtaWay {
  const char* what;
  const char* own;
  const char* cub;
  int threads;
  /// in, out: [threads] in device memory.
  cudaError_t (*run_own)(const uint32_t* in, int rounds, uint32_t* out, cudaStream_t stream);
  cudaError_t (*run_cub)(const uint32_t* in, int rounds, uint32_t* out, cudaStream_t stream);
};
constexpr int kMostCtaThreads = 1024;
extern const CtaWay kCtaWays[];
extern const int kNumCtaWays;

/// Groups pairs by expert, as LaunchGroup does, by CUB's sort and histogram of whole arrays.
struct CubGroup {
  int pairs, experts;
  const int32_t* ids;    // [pairs]
  const int32_t* slots;  // [pairs]: 0, 1, ...
  int32_t* sorted_ids;   // [pairs]
  int32_t* sorted;       // [pairs]
  int32_t* counts;       // [experts]
  int32_t* firsts;       // [experts]
};
/// bytes: of the scratch memory; where that is null, stores what is needed and does nothing else.
cudaError_t LaunchCubGroup(const CubGroup& group, void* scratch, size_t* bytes,
                           cudaStream_t stream);

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_CUB_KERNELS_H_
