// Stores the results of a tile that mma.sync multiplied: act(gate) * up to h, down to the slots'
// rows.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_STORE_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_STORE_CUH_

#include <cstdint>

#include "kernels/cuda/prompt/prompt_mma_ring.cuh"
#include "kernels/cuda/prompt/prompt_store.cuh"

namespace moert::cuda {

/// Stores results by all threads of a CTA. Rows of 16-byte pieces are swizzled as h's are: piece c
/// of row r lies at c ^ (r % 8).
template <bool kGateUp, int kMost>
struct MmaStore {
  using Warp = MmaWarp<kGateUp, kMost>;
  static constexpr int kColumns = MmaColumns(kMost);
  static constexpr int kBlocks = Warp::kBlocks;
  static constexpr int kRows = PromptRowBlocks(kMost) * 16;  // of down's tile
  using Sums = float[kBlocks][kColumns / 2];

  const PromptGemmArgs& args;
  const PromptSlot<kMost>& slot;
  const Warp& of;
  const uint32_t shared;  // the ring, which no thread reads any more

  __device__ __forceinline__ void Run(Sums& d) const {
    const PromptStore<kGateUp, kMost, MmaRowGroups(kMost)> store{of, shared};
    if (slot.bias != 0) store.template AddBiases<kColumns>(slot, d);
    if constexpr (kGateUp) {
      store.template Prepare<kColumns>(args.activation, d);
      const bool silu = args.activation.function != DeviceFunction::kGeluTanh;
      const int block = slot.row_tile * Warp::kOfGate + of.RowBlock(0);
      store.template Activate<kColumns>(silu, block < slot.row_blocks, d);
      H(d[0]);
    } else {
      Out(d);
    }
  }

 private:
  /// Stores h. A piece of it has 64 channels: [column][64 channels].
  __device__ __forceinline__ void H(const float (&d)[kColumns / 2]) const {
    constexpr int kPieces = Warp::kOfGate / 4;
    const int bytes = slot.columns * 128;  // of a piece
    const auto put = [&](int channel, int from) {
      Put(shared + channel / 64 * bytes, 128, channel % 64, from, d);
    };
    put(of.FirstRow(0), 0);
    if constexpr (!Warp::kHalves) put(of.SecondRow(0), 2);
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int piece = slot.row_tile * kPieces + p;
      if (piece * 4 >= slot.row_blocks) break;
      for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += kMmaThreads * 16) {
        *reinterpret_cast<uint4*>(slot.h + int64_t{piece} * bytes + i) =
            LoadShared16(shared + p * bytes + i);
      }
    }
  }

  __device__ __forceinline__ void Out(const Sums& d) const {
    constexpr int kPieces = kRows / 8;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      Put(shared, kRows * 2, of.FirstRow(b), 0, d[b]);
      Put(shared, kRows * 2, of.SecondRow(b), 2, d[b]);
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < slot.count * kPieces; i += kMmaThreads) {
      const int column = i / kPieces, piece = i % kPieces;
      const int channel = slot.row_tile * kRows + piece * 8;
      if (channel >= args.out_stride) continue;
      *reinterpret_cast<uint4*>(args.out + int64_t{slot.rows[column]} * args.out_stride + channel) =
          LoadShared16(shared + column * (kRows * 2) + ((piece ^ (column & 7)) * 16));
    }
  }

  /// Stores one channel of the lane's columns: d[4 j + from] and d[4 j + from + 1] of the j-th
  /// eight columns.
  __device__ __forceinline__ void Put(uint32_t to, int row_bytes, int channel, int from,
                                      const float (&d)[kColumns / 2]) const {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (of.first + 8 * j >= of.end) continue;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = of.first + 8 * j + 2 * (of.lane & 3) + c;
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + column * row_bytes +
                                                     (((channel >> 3) ^ (column & 7)) * 16) +
                                                     (channel & 7) * 2),
                     "h"(ToBf16(d[4 * j + from + c]))
                     : "memory");
      }
    }
  }
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_MMA_STORE_CUH_
