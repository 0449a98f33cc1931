#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/primitives/activation.cuh"
#include "kernels/cuda/primitives/element.cuh"
#include "kernels/cuda/rows.h"

namespace moert::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void PackRowsKernel(const T* x, int cols, int64_t x_stride, uint16_t* packed,
                               int64_t stride) {
  const int64_t row = blockIdx.x;
  // A thread fills 4 elements that lie together: one of the 8-byte halves of a fragment.
  for (int i = threadIdx.x; i < stride / 4; i += kThreads) {
    const int base = i / 8 * 32 + (i & 1) * 16 + ((i & 7) >> 1) * 2;
    const int channel[4] = {base, base + 1, base + 8, base + 9};
    uint16_t v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[j] = channel[j] < cols ? ToBf16(ToFloat(x[row * x_stride + channel[j]])) : uint16_t{0};
    }
    *reinterpret_cast<ushort4*>(packed + row * stride + i * 4) =
        make_ushort4(v[0], v[1], v[2], v[3]);
  }
}

template <typename In, typename Out>
__global__ void CombineKernel(const __grid_constant__ CombineArgs args) {
  const int64_t token = blockIdx.x;
  const int hidden = args.x.cols;
  const In* x = static_cast<const In*>(args.x.data) + token * args.x.stride;
  float shared_weight = 1;
  if (args.shared && args.shared_gate != nullptr) {
    __shared__ float parts[kThreads / 32];
    float dot = 0;
    for (int i = threadIdx.x; i < hidden; i += kThreads) dot += ToFloat(x[i]) * args.shared_gate[i];
    dot = WarpSum(dot);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = dot;
    __syncthreads();
    dot = 0;
    for (int w = 0; w < kThreads / 32; ++w) dot += parts[w];
    shared_weight = 1 / (1 + expf(-dot));
  }
  const float* slots = args.slots + token * args.top_k * args.slot_stride;
  const float* shared =
      args.slots + (static_cast<int64_t>(gridDim.x) * args.top_k + token) * args.slot_stride;
  const float* weights = args.weights + token * args.top_k;
  Out* out = static_cast<Out*>(args.out) + token * args.out_stride;
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    float sum = weights[0] * slots[i];
    for (int j = 1; j < args.top_k; ++j)
      sum = fmaf(weights[j], slots[j * args.slot_stride + i], sum);
    if (args.shared) sum = fmaf(shared_weight, shared[i], sum);
    out[i] = FromFloat<Out>(sum);
  }
}

template <typename T>
using Element = std::remove_const_t<std::remove_pointer_t<T>>;

}  // namespace

int LaunchPackRows(const DeviceRows& x, uint16_t* packed, int64_t stride, CUstream_st* stream) {
  WithElement(x.dtype, [&](auto type) {
    using T = Element<decltype(type)>;
    PackRowsKernel<T><<<x.rows, kThreads, 0, stream>>>(static_cast<const T*>(x.data), x.cols,
                                                       x.stride, packed, stride);
  });
  return cudaGetLastError();
}

int LaunchCombine(const CombineArgs& args, CUstream_st* stream) {
  WithElement(args.x.dtype, [&](auto in) {
    WithElement(args.out_dtype, [&](auto out) {
      CombineKernel<Element<decltype(in)>, Element<decltype(out)>>
          <<<args.x.rows, kThreads, 0, stream>>>(args);
    });
  });
  return cudaGetLastError();
}

}  // namespace moert::cuda
