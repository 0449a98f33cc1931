// A host's own kernel over experts: the product of opaque_fixture.h, on the device.
#ifndef MOERT_TESTS_GPU_TOY_KERNEL_H_
#define MOERT_TESTS_GPU_TOY_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace moert::test {

/// Part p of the expert in slot s begins at base[p] + s * stride[p].
struct ToyWeights {
  static constexpr int kParts = 3;
  const std::byte* base[kParts];
  int64_t stride[kParts];
  int64_t bytes[kParts];
};

/// out[i] = product over the expert in slot slots[i]; -1 where there is none. All in device memory.
cudaError_t LaunchToy(const ToyWeights& weights, const int32_t* slots, int pairs, double x,
                      double* out, cudaStream_t stream);
/// Rows of pairs: rows[i][c] = the product over the expert in slot slots[i] * x[i / top_k][c], as
/// those of kX. Where there is none: zeros.
cudaError_t LaunchToyRows(const ToyWeights& weights, const int32_t* slots, int pairs, int top_k,
                          const float* x, int cols, float* rows, cudaStream_t stream);
/// Keeps the stream busy for so long.
cudaError_t LaunchDelay(int64_t microseconds, cudaStream_t stream);

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_TOY_KERNEL_H_
