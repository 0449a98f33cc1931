// Packs activation rows for the schemes that transform or quantize them, bit for bit as on the CPU
// (kernels/reference/pack_quant_reference.cc, lib/quant/hadamard.cc).
//
// A CTA packs a row; a warp packs 128 channels at a time, which are one Hadamard block (or several
// smaller ones) and one group of scales. Where a row has one scale, its maximum is found first, in
// a pass of its own.
#include <cuda_runtime.h>

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/e4m3.cuh"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/operand_scale.cuh"
#include "kernels/cuda/route/rows.h"
#include "kernels/cuda/route/weighted_row.cuh"
#include "quant/hadamard.h"

namespace moert::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kChunk = 128;  // channels of a warp; a lane has lane, lane + 32, ...
constexpr uint32_t kAll = 0xffffffffu;

/// Bit i: whether the sign of channel i of a Hadamard block is negative.
struct Signs {
  uint64_t bits[2];
};
Signs HadamardSigns() {
  Signs s{};
  for (int i = 0; i < kChunk; ++i) {
    if (HadamardSign(i) < 0) s.bits[i / 64] |= uint64_t{1} << (i % 64);
  }
  return s;
}

struct RowForm {
  OperandForm form;
  int hadamard_block;  // 0: none
  Signs signs;
};

/// The 4 channels of a lane in a chunk, transformed.
template <typename Row>
__device__ __forceinline__ void LoadChunk(const Row& row, int k, int chunk, const RowForm& f,
                                          float (&v)[4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int channel = chunk * kChunk + lane + 32 * j;
    v[j] = channel < k ? ToFloat(row[channel]) : 0.0f;
  }
  if (f.hadamard_block == 0) return;
  const float norm = 1.0f / sqrtf(static_cast<float>(f.hadamard_block));
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int i = (lane + 32 * j) & (f.hadamard_block - 1);
    v[j] *= (f.signs.bits[i / 64] >> (i % 64)) & 1 ? -norm : norm;
  }
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
    if (half < f.hadamard_block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float other = __shfl_xor_sync(kAll, v[j], half);
        v[j] = lane & half ? other - v[j] : v[j] + other;
      }
    }
  }
#pragma unroll
  for (int half = 1; half < 4; half *= 2) {
    if (half * 32 < f.hadamard_block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j & half) continue;
        const float a = v[j], b = v[j + half];
        v[j] = a + b;
        v[j + half] = a - b;
      }
    }
  }
}

__device__ __forceinline__ float Limit(OperandForm form) {
  if (form == OperandForm::kF8 || form == OperandForm::kF8Bytes) return 448;
  return form == OperandForm::kInt8Group || form == OperandForm::kInt8Token ? 127 : 7;
}

/// The largest magnitude of a lane's channels; infinite if one is not finite.
__device__ __forceinline__ float LaneMaximum(const float (&v)[4]) {
  float maximum = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) maximum = isfinite(v[j]) ? fmaxf(maximum, fabsf(v[j])) : INFINITY;
  return maximum;
}
__device__ __forceinline__ float WarpMaximum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(kAll, v, d));
  return v;
}

/// Where a row is stored.
struct RowOut {
  uint8_t* row;
  float* scales;  // one, or one for every chunk
};
__device__ __forceinline__ RowOut PackedRow(uint8_t* row, int k) {
  return {row, reinterpret_cast<float*>(row + OperandScales(k))};
}

/// Where a byte of a channel goes.
__device__ __forceinline__ uint8_t* ByteOf(const RowOut& to, int channel) {
  const int in8 = channel & 7;
  return to.row + (channel & ~15) + in8 / 2 * 4 + (in8 & 1) * 2 + ((channel >> 3) & 1);
}

/// Stores a lane's channels of a chunk in e4m3; the chunk has a scale of its own.
__device__ __forceinline__ void StoreF8Group(const float (&v)[4], int chunk, OperandForm form,
                                             float maximum, const RowOut& to) {
  const int lane = threadIdx.x % 32;
  const OperandScale group = F8GroupScaleOf(__float_as_uint(maximum));
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int channel = chunk * kChunk + lane + 32 * j;
    const float nearest = NearestF8(v[j] * group.inverse);
    if (form == OperandForm::kF8GroupBytes) {
      *ByteOf(to, channel) = F8Bits(nearest);
    } else {
      reinterpret_cast<uint16_t*>(to.row)[PackedIndex(channel)] = ToBf16(nearest * group.scale);
    }
  }
  if (lane == 0 && form == OperandForm::kF8GroupBytes) {
    to.scales[chunk] = group.scale;
  }
}

/// Stores a lane's channels of a chunk, which share a scale.
__device__ __forceinline__ void StoreChunk(const float (&v)[4], int chunk, const RowForm& f,
                                           float maximum, const RowOut& to) {
  if (f.form == OperandForm::kF8Group || f.form == OperandForm::kF8GroupBytes) {
    StoreF8Group(v, chunk, f.form, maximum, to);
    return;
  }
  uint8_t* const out = to.row;
  const int lane = threadIdx.x % 32;
  const float limit = Limit(f.form);
  const OperandScale scale = ScaleTo(limit, maximum);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int channel = chunk * kChunk + lane + 32 * j;
    if (f.form == OperandForm::kBf16) {
      reinterpret_cast<uint16_t*>(out)[PackedIndex(channel)] = ToBf16(v[j]);
      continue;
    }
    const float scaled = scale.inverse > 0 ? v[j] * scale.inverse : 0.0f;
    uint8_t* const byte = ByteOf(to, channel);
    if (f.form == OperandForm::kF8 || f.form == OperandForm::kF8Bytes) {
      const float nearest = NearestF8(fminf(fmaxf(scaled, -limit), limit));
      if (f.form == OperandForm::kF8Bytes) {
        *byte = F8Bits(nearest);
      } else {
        reinterpret_cast<uint16_t*>(out)[PackedIndex(channel)] = ToBf16(nearest * kF8Activations);
      }
    } else {
      const float code = fminf(fmaxf(rintf(scaled), -limit), limit);
      *reinterpret_cast<int8_t*>(byte) = static_cast<int8_t>(code);
    }
  }
  if (lane == 0 && f.form != OperandForm::kBf16) {
    to.scales[chunk] = scale.scale;
  }
}

/// All threads of a CTA pack one row. row[channel]: an element. shared: kWarps floats.
template <typename Row>
__device__ void PackRow(const Row& row, int k, const RowForm& f, float* shared, const RowOut& to) {
  const int warp = threadIdx.x / 32;
  const int chunks = (k + kChunk - 1) / kChunk;
  const bool one_scale = f.form == OperandForm::kInt8Token || f.form == OperandForm::kInt4Token ||
                         f.form == OperandForm::kF8 || f.form == OperandForm::kF8Bytes;
  float v[4];
  float row_maximum = 0;
  if (one_scale) {
    for (int c = warp; c < chunks; c += kWarps) {
      LoadChunk(row, k, c, f, v);
      row_maximum = fmaxf(row_maximum, LaneMaximum(v));
    }
    row_maximum = WarpMaximum(row_maximum);
    __syncthreads();  // the last row's maximum has been read
    if (threadIdx.x % 32 == 0) shared[warp] = row_maximum;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) row_maximum = fmaxf(row_maximum, shared[w]);
  }
  for (int c = warp; c < chunks; c += kWarps) {
    // A warp with a single chunk still holds it.
    if (!one_scale || chunks > kWarps) LoadChunk(row, k, c, f, v);
    StoreChunk(v, c, f, one_scale ? row_maximum : WarpMaximum(LaneMaximum(v)), to);
  }
}

__device__ __forceinline__ RowForm FormOf(int operand, int k, const Signs& signs) {
  const bool hadamard = operand >= kOperandForms;
  return {static_cast<OperandForm>(operand % kOperandForms), hadamard ? min(k & -k, kChunk) : 0,
          signs};
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    PackOperandKernel(const T* x, int k, int64_t x_stride, int operand, Signs signs,
                      uint8_t* packed, int64_t stride, RowWeights weights) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ float shared[kWarps];
  const int64_t row = blockIdx.x;
  PackRow(WeightedRow<T>(x, x_stride, weights, blockIdx.x), k, FormOf(operand, k, signs), shared,
          PackedRow(packed + row * stride, k));
}

__global__ void __launch_bounds__(kWarps * 32)
    PackHiddenKernel(const __grid_constant__ PackHiddenArgs args, Signs signs) {
  TriggerDependentLaunch();
  GridDependencySync();
  __shared__ float shared[kWarps];
  const int tiles = args.table.starts[0][args.shares].tile;
  for (int at = blockIdx.x; at < tiles * kTileTokens; at += gridDim.x) {
    const Tile& tile = args.table.tiles[at / kTileTokens];
    const TileMatrix& down = tile.matrix[1];
    if (at % kTileTokens >= tile.count || down.operand == 0) continue;
    const int64_t slot = tile.slots[at % kTileTokens];
    PackRow(args.wide_h + slot * args.wide_h_stride, down.k, FormOf(down.operand, down.k, signs),
            shared, PackedRow(args.h + slot * args.h_stride, down.k));
  }
}

}  // namespace

int LaunchPackOperand(const DeviceRows& x, int operand, uint8_t* packed, int64_t stride,
                      CUstream_st* stream, const RowWeights& weights) {
  return WithElement(x.dtype, [&](auto type) -> int {
    using T = ElementOf<decltype(type)>;
    return LaunchEarly(PackOperandKernel<T>, NumRows(x, weights), kWarps * 32, 0, stream,
                       static_cast<const T*>(x.data), x.cols, x.stride, operand, HadamardSigns(),
                       packed, stride, weights);
  });
}

int LaunchPackHidden(const PackHiddenArgs& args, CUstream_st* stream) {
  return LaunchEarly(PackHiddenKernel, 4 * args.shares, kWarps * 32, 0, stream, args,
                     HadamardSigns());
}

}  // namespace moert::cuda
