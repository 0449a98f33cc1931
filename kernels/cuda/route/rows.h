// Operations on rows of hidden states: into packed activations, and back into the layer's output.
#ifndef MOERT_KERNELS_CUDA_ROUTE_ROWS_H_
#define MOERT_KERNELS_CUDA_ROUTE_ROWS_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// A matrix of hidden states in device memory. dtype: moert::DType, one of f32, bf16, f16.
struct DeviceRows {
  const void* data = nullptr;
  int32_t dtype = 0;
  int32_t rows = 0;
  int32_t cols = 0;
  int64_t stride = 0;  // elements
};

/// Rows of a layer whose weights multiply its inputs: row r < pairs is weights[r] times row r /
/// top_k of x, row pairs + t is row t of x. Null: only the rows of x.
struct RowWeights {
  const float* weights = nullptr;  // [pairs]
  int32_t pairs = 0;
  int32_t top_k = 1;
};

/// Rounds, transforms or quantizes each row as `operand` (device_types.h) says, bit for bit as the
/// CPU kernels do, and packs it (primitives/activation.cuh). stride: bytes, at least
/// OperandBytes(x.cols).
int LaunchPackRows(const DeviceRows& x, int operand, uint8_t* packed, int64_t stride,
                   CUstream_st* stream, const RowWeights& weights = {});

/// Rounds each row to bf16, channels in their order and zeros up to whole 64: what prompt_gemm.h
/// reads. stride: bytes, a multiple of 16.
int LaunchRoundRows(const DeviceRows& x, uint8_t* rounded, int64_t stride, CUstream_st* stream,
                    const RowWeights& weights = {});

/// Packs h, which gate and up left in floats, for down: in those of the wave's tiles whose down
/// matrix needs an operand other than plain bf16.
struct PackHiddenArgs {
  TileTable table;
  const float* wide_h = nullptr;  // [slots, wide_h_stride]
  int64_t wide_h_stride = 0;
  uint8_t* h = nullptr;  // [slots] rows of h_stride bytes
  int64_t h_stride = 0;
  int32_t shares = 0;  // as given to LaunchMakeTiles
};
int LaunchPackHidden(const PackHiddenArgs& args, CUstream_st* stream);

struct CombineArgs {
  DeviceRows x;                 // the layer's input: the shared gate reads it
  const void* slots = nullptr;  // [tokens * top_k + tokens, slot_stride], floats
  bool narrow = false;          // bf16 instead; slot_stride is a multiple of 8
  int64_t slot_stride = 0;
  const float* weights = nullptr;      // [tokens, top_k]
  const int32_t* ids = nullptr;        // [tokens, top_k]: slots of an id below 0 were not computed
                                       // and are left out; null: all were
  const float* shared_gate = nullptr;  // [cols] or null: weight 1
  bool shared = false;                 // slots from tokens * top_k on are the shared expert's
  int32_t top_k = 1;
  void* out = nullptr;
  int32_t out_dtype = 0;
  int64_t out_stride = 0;
};

/// out[t] = sum over j of weights[t, j] * slots[t * top_k + j], in the order of j, then the shared
/// expert's row times sigmoid(shared_gate . x[t]).
int LaunchCombine(const CombineArgs& args, CUstream_st* stream);

/// Takes a routing that the host left in device memory: ids[i] = in_ids[i] where that is in [0,
/// experts), else -1; weights[i] = in_weights[i], times scales[ids[i]] where there are scales.
/// used: null, or receives the same as ids.
int LaunchAdoptRouting(const int32_t* in_ids, const float* in_weights, int pairs, int experts,
                       const float* scales, int32_t* ids, float* weights, int32_t* used,
                       CUstream_st* stream);

/// slots[where[r]] = rows[r], cols wide, for r < count; slots as CombineArgs has them. rows
/// ([count, cols]) and where may lie in mapped host memory.
int LaunchPlaceRows(const float* rows, const int32_t* where, int count, int cols, void* slots,
                    bool narrow, int64_t slot_stride, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_ROWS_H_
