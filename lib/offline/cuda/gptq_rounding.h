// GPTQ's rounding of a matrix in device memory. The host computes the scales of groups that the
// device cannot determine.
#ifndef MOERT_LIB_OFFLINE_CUDA_GPTQ_ROUNDING_H_
#define MOERT_LIB_OFFLINE_CUDA_GPTQ_ROUNDING_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/cuda/cuda_api.h"
#include "moert/scheme.h"
#include "offline/cuda/lanes.h"
#include "offline/gptq.h"
#include "offline/rtn.h"
#include "quant/quantized_matrix.h"

namespace moert::offline {

/// Memory that successive calls of a lane reuse.
struct GptqRoom {
  cuda::Buffer weights, errors, fits, codes;  // on the device
  cuda::Buffer host;                          // fits, and groups that the host fits
};

/// All in device memory, row-major.
struct GptqMatrix {
  const float* original = nullptr;  // [rows, k]
  const float* shares = nullptr;    // [k, k], of GptqFactor
  uint8_t* codes = nullptr;         // [rows, k], or null
  float* back = nullptr;            // [rows, k] what the codes stand for, or null
};

/// Whether a device can round matrices of the layout.
bool CanRoundGptq(const MatrixLayout& layout, const GptqOptions& options);

/// Like QuantizeGptq on the CPU. scales: [rows][groups], in their stored form. On return all but
/// the last kernels of `stream` have ended; after an error nothing has been waited for.
absl::Status RoundGptq(const MatrixLayout& layout, const GptqMatrix& matrix,
                       const GptqOptions& options, GptqRoom* room, cudaStream_t stream,
                       std::vector<GroupScale>* scales);
/// The same on a lane, with codes and scales in host memory; `matrix` has no codes. Waits.
absl::StatusOr<QuantizedMatrix> RoundGptqToHost(const MatrixLayout& layout, GptqMatrix matrix,
                                                const GptqOptions& options, GptqRoom* room,
                                                LaneStream* lane);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CUDA_GPTQ_ROUNDING_H_
