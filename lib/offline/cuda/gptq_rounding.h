// GPTQ's rounding of a matrix in device memory. The host is asked in between for the scales of
// groups of which the device cannot tell.
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

/// Memory that calls of a lane use again.
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

/// As QuantizeGptq on the CPU. scales: [rows][groups], as they are stored. Has waited for all but
/// the last kernels of `stream`; after an error, for nothing.
absl::Status RoundGptq(const MatrixLayout& layout, const GptqMatrix& matrix,
                       const GptqOptions& options, GptqRoom* room, cudaStream_t stream,
                       std::vector<GroupScale>* scales);
/// The same on a lane, to codes and scales of the host's; `matrix` has no codes. Waits.
absl::StatusOr<QuantizedMatrix> RoundGptqToHost(const MatrixLayout& layout, GptqMatrix matrix,
                                                const GptqOptions& options, GptqRoom* room,
                                                LaneStream* lane);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_CUDA_GPTQ_ROUNDING_H_
