// How the scales of imported packings come into a stage of family P's ring (prompt_imported.cuh).
#ifndef MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_SCALE_COPIES_CUH_
#define MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_SCALE_COPIES_CUH_

#include <cstdint>

#include "kernels/cuda/primitives/prompt_imported.cuh"

namespace moert::cuda {

template <Packing kPacking, bool kGateUp>
__device__ __forceinline__ PromptScaleForm ScaleForm(const TileMatrix& m) {
  PromptScaleForm form{m.group_k16s,
                       (m.k + 16 * m.group_k16s - 1) / (16 * m.group_k16s),
                       m.zero_distance,
                       m.packing == Packing::kW4GroupF16,
                       {}};
  if constexpr (kPacking == Packing::kNvFp4) {
    const Decoding<kPacking> decoding(m, kGateUp ? 0 : 1);
    form.matrix_scale[0] = decoding.scale[0];
    form.matrix_scale[1] = decoding.scale[1];
  }
  return form;
}

/// The scales of imported packings that a lane of the weight warp brings with every stage: of one
/// group in it (or its zeros), of the row blocks of one matrix that the tile has.
template <Packing kPacking, bool kGateUp>
struct StageScaleCopies {
  const uint8_t* at = nullptr;  // of the matrix's first group
  int64_t stride = 0;           // to the next group
  uint32_t to = 0;              // behind a stage's weights
  uint32_t bytes = 0;           // 0: this lane brings none
  int group = 0;                // in the stage
  int shift = 0;
  int groups = 0;

  template <typename Slot>
  __device__ __forceinline__ StageScaleCopies(const Slot& slot, int lane) {
    constexpr int kFirstLane = 8;  // those before bring weights
    constexpr int kMatrices = kGateUp ? 2 : 1;
    constexpr int kBlocks = 8 / kMatrices;
    constexpr int kGroups = PromptGroups(kPacking);
    if (lane < kFirstLane) return;
    const int matrix = kGateUp ? lane & 1 : 0;
    const int index = (lane - kFirstLane) / kMatrices;
    group = index % kGroups;
    const PromptScaleForm& form = slot.form;
    shift = (form.group_k16s >= 2) + (form.group_k16s >= 4) + (form.group_k16s >= 8);
    groups = form.groups;
    const bool zeros = index >= kGroups;
    if (index >= 2 * kGroups ||
        (zeros && (kPacking != Packing::kW4Group || form.zero_distance == 0)) ||
        group >= max(4 >> shift, 1)) {
      return;
    }
    const int block_bytes = zeros ? 16 : BlockScaleBytes(kPacking);
    const int block = slot.row_tile * kBlocks;
    bytes = min(kBlocks, slot.row_blocks - block) * block_bytes;
    at = slot.scales + (matrix != 0 ? slot.second_scales : 0) + (zeros ? form.zero_distance : 0) +
         int64_t{block} * block_bytes;
    stride = int64_t{slot.row_blocks} * block_bytes;
    to = (zeros ? kZeroBytesAt : 0) + (group * 8 + matrix * kBlocks) * block_bytes;
  }
  /// What the lane brings with stage k.
  __device__ __forceinline__ uint32_t Bytes(int k) const { return Group(k) < groups ? bytes : 0; }
  __device__ __forceinline__ void Copy(int k, uint32_t scales, uint32_t barrier) const {
    const uint32_t now = Bytes(k);
    if (now != 0) BulkCopy(scales + to, at + Group(k) * stride, now, barrier);
  }

 private:
  __device__ __forceinline__ int Group(int k) const { return (k * 4 >> shift) + group; }
};

struct NoScales {
  template <typename Slot>
  __device__ __forceinline__ NoScales(const Slot& /*slot*/, int /*lane*/) {}
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PRIMITIVES_PROMPT_SCALE_COPIES_CUH_
