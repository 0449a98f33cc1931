#include "host/cuda/delta_net_kernel.h"
#include "host/cuda/reduce.cuh"
#include "util/launch.cuh"

namespace moert::host {
namespace {

using gpu::GridDependencySync;
using gpu::LaunchEarly;
using gpu::TriggerDependentLaunch;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// ln(1 + e^x)
__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/// The current and the next state of a sequence in a layer.
struct States {
  const float* from;  // null: a new sequence, whose state is zero
  float* to;

  __device__ __forceinline__ States(const DeltaNetArgs& a, const RowInput& row) {
    const int64_t floats = a.state.recurrent + a.state.history;
    const SequenceCache cache = a.inputs.sequences[row.sequence];
    float* const layer = cache.states + 2 * floats * a.layer;
    from = row.position == row.before ? nullptr : layer + cache.state * floats;
    to = layer + (1 - cache.state) * floats;
  }
};

/// The convolution's input of channel c, `back` positions before a row.
__device__ __forceinline__ float InputOf(const DeltaNetArgs& a, const RowInput& row,
                                         const States& states, int64_t index, int channels, int c,
                                         int back) {
  if (back <= row.before) return a.projected[(index - back) * a.stride + c];
  if (states.from == nullptr) return 0;
  const int kept = a.kernel - 1 - (back - row.before);
  return states.from[a.state.recurrent + static_cast<int64_t>(kept) * channels + c];
}

/// One warp per row and head of queries, keys or values.
__global__ void __launch_bounds__(kThreads) ConvolveKernel(const __grid_constant__ DeltaNetArgs a) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int head = blockIdx.y * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= 2 * a.key_heads + a.value_heads) return;
  const int64_t index = blockIdx.x;
  const RowInput row = a.inputs.rows[index];
  const States states(a, row);
  const bool last = index + 1 == a.rows || a.inputs.rows[index + 1].sequence != row.sequence;
  const int keys = a.key_heads * a.key_dim, channels = 2 * keys + a.value_heads * a.value_dim;
  const bool value = head >= 2 * a.key_heads;
  const int first = value ? 2 * keys + (head - 2 * a.key_heads) * a.value_dim : head * a.key_dim;
  const int width = value ? a.value_dim : a.key_dim;
  float* const to = a.convolved + index * channels;
  float squares = 0;
  for (int c = first + lane; c < first + width; c += 32) {
    float y = 0;
    for (int t = 0; t < a.kernel; ++t) {
      const int back = a.kernel - 1 - t;
      const float x = InputOf(a, row, states, index, channels, c, back);
      y = __fmaf_rn(a.convolution[static_cast<int64_t>(t) * channels + c], x, y);
      if (last && back + 1 < a.kernel) {  // the next position's inputs, one further back
        states.to[a.state.recurrent + static_cast<int64_t>(t - 1) * channels + c] = x;
      }
    }
    y *= Sigmoid(y);
    squares = __fmaf_rn(y, y, squares);
    to[c] = y;
  }
  if (value) return;
  // Scales to length 1, queries to 1 over the root of their width. A lane reads back what it wrote.
  const float length = head < a.key_heads ? rsqrtf(static_cast<float>(a.key_dim)) : 1.0f;
  const float scale = length / sqrtf(WarpSum(squares) + 1e-6f);
  for (int c = first + lane; c < first + width; c += 32) to[c] *= scale;
}

constexpr int kLanes = 4;                    // lanes per column of a head's matrix
constexpr int kColumns = kThreads / kLanes;  // columns per block
constexpr int kHeld = kMaxDeltaKeyDim / kLanes;
constexpr int kSteps = 16;  // positions whose operands are in shared memory

/// A block's data of kSteps positions.
struct Positions {
  float query[kSteps][kMaxDeltaKeyDim];
  float key[kSteps][kMaxDeltaKeyDim];
  float value[kSteps][kColumns];
  float beta[kSteps], decay[kSteps];
};

/// Loads the rows [first, first + count); zeros for channels that do not exist.
__device__ __forceinline__ void LoadPositions(const DeltaNetArgs& a, int head, int column,
                                              int64_t first, int count, Positions* p) {
  const int keys = a.key_heads * a.key_dim, values = a.value_heads * a.value_dim;
  const int key_head = head / (a.value_heads / a.key_heads), channels = 2 * keys + values;
  const float* const rows = a.convolved + first * channels;
  for (int i = threadIdx.x; i < count * kMaxDeltaKeyDim; i += kThreads) {
    const int step = i / kMaxDeltaKeyDim, d = i % kMaxDeltaKeyDim;
    const float* const x = rows + step * static_cast<int64_t>(channels) + key_head * a.key_dim + d;
    p->query[step][d] = d < a.key_dim ? x[0] : 0.0f;
    p->key[step][d] = d < a.key_dim ? x[keys] : 0.0f;
  }
  for (int i = threadIdx.x; i < count * kColumns; i += kThreads) {
    const int step = i / kColumns, j = column + i % kColumns;
    const float* const x = rows + step * static_cast<int64_t>(channels) + 2 * keys;
    p->value[step][i % kColumns] = j < a.value_dim ? x[head * a.value_dim + j] : 0.0f;
  }
  if (threadIdx.x >= count) return;
  const float* const x = a.projected + (first + threadIdx.x) * a.stride + 2 * keys + 2 * values;
  p->beta[threadIdx.x] = Sigmoid(x[head]);
  p->decay[threadIdx.x] = expf(-a.rate[head] * Softplus(x[a.value_heads + head] + a.dt_bias[head]));
}

/// A lane's part of a column: channels 4 lane to 4 lane + 3 of every 16.
struct Column {
  float held[kHeld];

  static __device__ __forceinline__ int ChannelOf(int i) {
    return static_cast<int>(threadIdx.x) % kLanes * 4 + i / 4 * 16 + i % 4;
  }
  /// One position: decays, learns to answer the key with the value, answers the query.
  __device__ __forceinline__ float Step(const Positions& p, int step) {
    const int lane = threadIdx.x % kLanes;
    const auto* const keys = reinterpret_cast<const float4*>(p.key[step]) + lane;
    const auto* const queries = reinterpret_cast<const float4*>(p.query[step]) + lane;
    const float decay = p.decay[step];
    float answer[4] = {};  // four, so that one sum need not wait for the one before
#pragma unroll
    for (int i = 0; i < kHeld; i += 4) {
      const float4 k = keys[i];
      const float key[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        held[i + j] *= decay;
        answer[j] = __fmaf_rn(held[i + j], key[j], answer[j]);
      }
    }
    const float delta = (p.value[step][threadIdx.x / kLanes] - SumLanes(answer)) * p.beta[step];
    float out[4] = {};
#pragma unroll
    for (int i = 0; i < kHeld; i += 4) {
      const float4 k = keys[i], q = queries[i];
      const float key[4] = {k.x, k.y, k.z, k.w}, query[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        held[i + j] = __fmaf_rn(key[j], delta, held[i + j]);
        out[j] = __fmaf_rn(held[i + j], query[j], out[j]);
      }
    }
    return SumLanes(out);
  }

  static __device__ __forceinline__ float SumLanes(const float (&parts)[4]) {
    float v = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  }
};

/// One block per kColumns columns of a head's matrix, over all rows of the sequence that begins at
/// blockIdx.z, a row or a tile.
__global__ void __launch_bounds__(kThreads) RecurKernel(const __grid_constant__ DeltaNetArgs a) {
  __shared__ __align__(16) Positions positions;
  TriggerDependentLaunch();
  GridDependencySync();
  const int64_t first_row = a.tiles > 0 ? a.inputs.tiles[blockIdx.z].first_row : blockIdx.z;
  const RowInput row = a.inputs.rows[first_row];
  if (row.before != 0) return;
  const States states(a, row);
  const int head = blockIdx.y, first_column = blockIdx.x * kColumns;
  const int column = first_column + static_cast<int>(threadIdx.x) / kLanes;
  const bool valid = column < a.value_dim;
  const int64_t matrix = static_cast<int64_t>(head) * a.key_dim * a.value_dim + column;
  Column state;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int channel = Column::ChannelOf(i);
    const bool inside = valid && channel < a.key_dim && states.from != nullptr;
    state.held[i] =
        inside ? states.from[matrix + static_cast<int64_t>(channel) * a.value_dim] : 0.0f;
  }
  const int64_t values = static_cast<int64_t>(a.value_heads) * a.value_dim;
  for (int64_t first = first_row;; first += kSteps) {
    const int64_t mine = first + threadIdx.x;
    const bool same =
        threadIdx.x < kSteps && mine < a.rows && a.inputs.rows[mine].sequence == row.sequence;
    const int count = __syncthreads_count(same);
    LoadPositions(a, head, first_column, first, count, &positions);
    __syncthreads();
    for (int step = 0; step < count; ++step) {
      const float out = state.Step(positions, step);
      if (valid && threadIdx.x % kLanes == 0) {
        a.recurred[(first + step) * values + head * a.value_dim + column] = out;
      }
    }
    if (count < kSteps) break;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int channel = Column::ChannelOf(i);
    if (!valid || channel >= a.key_dim) continue;
    states.to[matrix + static_cast<int64_t>(channel) * a.value_dim] = state.held[i];
  }
}

/// out = norm(recurred) silu(gate). One warp per row and head.
__global__ void __launch_bounds__(kThreads) GateKernel(const __grid_constant__ DeltaNetArgs a) {
  TriggerDependentLaunch();
  GridDependencySync();
  const int head = blockIdx.y * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= a.value_heads) return;
  const int64_t index = blockIdx.x, place = (index * a.value_heads + head) * a.value_dim;
  const float* const gate = a.projected + index * a.stride + 2 * a.key_heads * a.key_dim +
                            (a.value_heads + head) * a.value_dim;
  const float* const y = a.recurred + place;
  float squares = 0;
  for (int i = lane; i < a.value_dim; i += 32) squares = __fmaf_rn(y[i], y[i], squares);
  const float scale = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(a.value_dim) + a.norm_eps);
  for (int i = lane; i < a.value_dim; i += 32) {
    a.out[place + i] = ToBf16(y[i] * scale * a.norm_weight[i] * gate[i] * Sigmoid(gate[i]));
  }
}

}  // namespace

int LaunchDeltaNet(const DeltaNetArgs& a, CUstream_st* stream) {
  if (a.key_dim > kMaxDeltaKeyDim || (a.tiles > 0 ? a.tiles : a.rows) > 65535) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  const auto by_warp = [&](int heads) { return dim3(a.rows, (heads + kWarps - 1) / kWarps); };
  int error =
      LaunchEarly(ConvolveKernel, by_warp(2 * a.key_heads + a.value_heads), kThreads, 0, stream, a);
  if (error != 0) return error;
  const dim3 grid((a.value_dim + kColumns - 1) / kColumns, a.value_heads,
                  a.tiles > 0 ? a.tiles : a.rows);
  error = LaunchEarly(RecurKernel, grid, kThreads, 0, stream, a);
  if (error != 0) return error;
  return LaunchEarly(GateKernel, by_warp(a.value_heads), kThreads, 0, stream, a);
}

}  // namespace moert::host
