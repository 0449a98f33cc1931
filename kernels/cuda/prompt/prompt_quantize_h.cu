// Quantizes a prompt's h for down, where gate and up stored it in bf16. A warp quantizes a column
// of a unit: it reads the channels as the product of bf16 would, and stores bytes as the product in
// 8 bits reads them.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/e4m3.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/operand_scale.cuh"
#include "kernels/cuda/prompt/prompt_gemm.h"

namespace moert::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kSlice = 32;  // columns of a CTA
constexpr int kHeld = 8;    // chunks of 128 channels that a warp keeps in registers

/// A lane's channels of a chunk: 2u, 2u + 8, 2u + 1 and 2u + 9 of 16, which are a word of bytes.
struct Word {
  float v[4] = {};

  /// The bits of the largest magnitude.
  __device__ __forceinline__ uint32_t Largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (const float x : v) bits = max(bits, __float_as_uint(x) & 0x7fffffffu);
    return bits;
  }
};

/// A column of a unit. The 16-byte pieces of 128 bytes are swizzled by the column.
struct Column {
  const uint8_t* from;  // in bf16
  uint8_t* to;
  float* scales;  // of chunk 0; the next one's lies `columns` behind
  int columns;    // of the unit
  int swizzle;
  int k64s;

  __device__ __forceinline__ Word Read(int chunk) const {
    const int lane = threadIdx.x % 32, block = lane / 4;
    const int k64 = 2 * chunk + block / 4;
    Word word;
    if (k64 >= k64s) return word;
    const uint8_t* const at = from + int64_t{k64} * columns * 128 + lane % 4 * 4;
    const int pair = block % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto two = *reinterpret_cast<const uint32_t*>(at + ((pair + i) ^ swizzle) * 16);
      word.v[i] = __uint_as_float(two << 16);
      word.v[i + 2] = __uint_as_float(two & 0xffff0000u);
    }
    return word;
  }
  __device__ __forceinline__ void Write(int chunk, uint32_t bytes) const {
    const int lane = threadIdx.x % 32;
    uint8_t* const at = to + int64_t{chunk} * columns * 128;
    *reinterpret_cast<uint32_t*>(at + ((lane / 4) ^ swizzle) * 16 + lane % 4 * 4) = bytes;
  }
  __device__ __forceinline__ void WriteScale(int chunk, float scale) const {
    if (threadIdx.x % 32 == 0) scales[chunk * columns] = scale;
  }
};

/// bits: of the largest magnitude of the values that share the scale.
template <OperandForm kForm>
__device__ __forceinline__ OperandScale ScaleOf(uint32_t bits) {
  if constexpr (kForm == OperandForm::kF8GroupBytes) return F8GroupScaleOf(bits);
  return ScaleTo(kForm == OperandForm::kF8Bytes ? 448 : 127, __uint_as_float(bits));
}

template <OperandForm kForm>
__device__ __forceinline__ uint32_t BytesOf(const Word& word, float inverse) {
  if constexpr (kForm == OperandForm::kF8GroupBytes || kForm == OperandForm::kF8Bytes) {
    return PackF8(word.v[0] * inverse, word.v[1] * inverse) |
           PackF8(word.v[2] * inverse, word.v[3] * inverse) << 16;
  }
  uint32_t bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int code = min(max(__float2int_rn(word.v[i] * inverse), -127), 127);
    bytes |= (static_cast<uint32_t>(code) & 0xff) << 8 * i;
  }
  return bytes;
}

/// Every chunk has a scale.
template <OperandForm kForm>
__device__ __forceinline__ void QuantizeChunks(const Column& column, int chunks) {
#pragma unroll 4
  for (int c = 0; c < chunks; ++c) {
    const Word word = column.Read(c);
    const OperandScale scale = ScaleOf<kForm>(__reduce_max_sync(~0u, word.Largest()));
    column.Write(c, BytesOf<kForm>(word, scale.inverse));
    column.WriteScale(c, scale.scale);
  }
}

/// All chunks share a scale. Those beyond kHeld are read twice.
template <OperandForm kForm>
__device__ __forceinline__ void QuantizeColumn(const Column& column, int chunks) {
  Word held[kHeld];
  uint32_t largest = 0;
#pragma unroll
  for (int c = 0; c < kHeld; ++c) held[c] = column.Read(c);
#pragma unroll
  for (const Word& word : held) largest = max(largest, word.Largest());
  for (int c = kHeld; c < chunks; ++c) largest = max(largest, column.Read(c).Largest());
  const OperandScale scale = ScaleOf<kForm>(__reduce_max_sync(~0u, largest));
#pragma unroll
  for (int c = 0; c < kHeld; ++c) {
    if (c < chunks) column.Write(c, BytesOf<kForm>(held[c], scale.inverse));
  }
  for (int c = kHeld; c < chunks; ++c) {
    column.Write(c, BytesOf<kForm>(column.Read(c), scale.inverse));
  }
  column.WriteScale(0, scale.scale);
}

__device__ __forceinline__ void Quantize(OperandForm form, const Column& column) {
  const int chunks = (column.k64s + 1) / 2;
  switch (form) {
    case OperandForm::kInt8Token:
      return QuantizeColumn<OperandForm::kInt8Token>(column, chunks);
    case OperandForm::kInt8Group:
      return QuantizeChunks<OperandForm::kInt8Group>(column, chunks);
    case OperandForm::kF8Bytes:
      return QuantizeColumn<OperandForm::kF8Bytes>(column, chunks);
    case OperandForm::kF8GroupBytes:
      return QuantizeChunks<OperandForm::kF8GroupBytes>(column, chunks);
    default:
      return;  // down reads h in bf16
  }
}

__global__ void __launch_bounds__(kWarps * 32, 4)
    QuantizePromptHKernel(const __grid_constant__ PromptGemmArgs args) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int slices = (args.most + kSlice - 1) / kSlice;
  const int end = *args.table.unit_count * slices;
  for (int at = blockIdx.x; at < end; at += gridDim.x) {
    const PromptUnit& unit = args.table.units[at / slices];
    const TileMatrix& down = unit.matrix[1];
    const bool there =
        args.form == PromptForm::kWgmma && down.operand == static_cast<int>(OperandForm::kF8Group);
    if (there) continue;
    const int first = at % slices * kSlice, last = min(first + kSlice, unit.count);
    const auto form = static_cast<OperandForm>(PromptOperand(down.operand));
    const int64_t h = unit.h_row * args.h_stride;
    float* const scales = args.h_columns + unit.h_row * args.h_columns_stride;
    for (int c = first + static_cast<int>(threadIdx.x) / 32; c < last; c += kWarps) {
      Quantize(form, {args.rounded_h + h + c * 128, args.h + h + c * 128, scales + c, unit.columns,
                      c & 7, down.k64s});
    }
  }
}

}  // namespace

int LaunchQuantizePromptH(const PromptGemmArgs& args, CUstream_st* stream) {
  constexpr int kCtas = 8;  // of a multiprocessor: two sets that it runs at once
  return LaunchEarly(QuantizePromptHKernel, kCtas * args.ctas, kWarps * 32, 0, stream, args);
}

}  // namespace moert::cuda
