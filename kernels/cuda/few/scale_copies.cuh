// Copies of a unit's scales into a warp's ring (weight_ring.cuh): lanes copy 16 bytes each, behind
// the unit's weights in its stage.
#ifndef MOERT_KERNELS_CUDA_FEW_SCALE_COPIES_CUH_
#define MOERT_KERNELS_CUDA_FEW_SCALE_COPIES_CUH_

#include <cstdint>

#include "kernels/cuda/few/tile_walk.cuh"
#include "kernels/cuda/primitives/dequant.cuh"
#include "kernels/cuda/primitives/packing.cuh"

namespace moert::cuda {

/// bf16 scales, then scale * zero, of 16 rows of both row blocks. The bits of a lane's index select
/// half, row block, zeros and group. kGroups: scale groups of a unit of 128 k, 0: a group is longer
/// than a unit.
template <Packing kPacking, int kGroups>
class GroupScaleCopies {
 public:
  static constexpr int kBytes = (kGroups == 2 ? 2 : 1) * 128;

  __device__ __forceinline__ GroupScaleCopies(const TileMatrix& m, const Slice& slice, int units,
                                              int product, int lane, const ItemRange& range) {
    constexpr int kK64s = UnitShape<kPacking>::kK64s;
    const int group = m.group_k16s / 4;
    group_units_ = kGroups == 0 ? (group + kK64s - 1) / kK64s : 1;
    group_stride_ = m.row_blocks * (kGroups == 2 ? 64 : 32);
    const int first_group = kGroups == 2      ? slice.begin
                            : kGroups == 1    ? slice.begin / 2
                            : group >= m.k64s ? 0
                                              : slice.begin / group;
    first_until_ = kGroups == 0 ? group_units_ - (slice.begin - first_group * group) / kK64s : 1;
    until_group_ = first_until_;
    at_ = m.scales +
          (static_cast<int64_t>(first_group) * m.row_blocks + (range.first << product)) * 32 +
          (lane & 1) * 16 + ((lane & 2) ? m.second_scales : 0) +
          ((lane & 4) ? m.zero_distance : 0) + ((lane & 8) ? m.row_blocks * 32 : 0);
    const int passed = units < first_until_ ? 0
                       : group_units_ == 1  ? units
                                            : (units - first_until_) / group_units_ + 1;
    jump_ = (1 << range.groups_log2 << product) * 32 - passed * group_stride_;
    copies_ = lane < (kGroups == 2 ? 16 : 8) && (m.zero_distance != 0 || (lane & 4) == 0);
    second_ = (lane & 2) != 0;
    piece_ = lane >> 3;
  }

  /// Copies scales of the next unit. to: of this lane; left: pieces of 64 k of the item from the
  /// unit on.
  __device__ __forceinline__ void Copy(uint32_t to, int left) {
    if (copies_) CopyAsync16(to, at_, left > piece_);
    if (kGroups > 0 || --until_group_ == 0) {
      until_group_ = group_units_;
      at_ += group_stride_;
    }
  }
  __device__ __forceinline__ void NextItem() {
    at_ += jump_;
    until_group_ = first_until_;
  }
  /// Makes the second row block the first one again.
  __device__ __forceinline__ void PairLone() {
    if (second_) at_ -= 32;
  }

 private:
  const uint8_t* at_;
  int jump_;  // from the end of an item to the next
  int group_units_, group_stride_, first_until_;
  int until_group_;  // units
  int piece_;        // the piece of 64 k of a unit with which the group begins
  bool copies_, second_;
};

/// Scales as in published files, and zero points as bytes: [group of the unit][row block][16 rows],
/// the zero points kZeros bytes behind the first scales. Copies zeros where the matrix has no
/// group.
template <Packing kPacking>
class ImportedScaleCopies {
 public:
  static constexpr bool kInt4 = kPacking == Packing::kW4Group;
  static constexpr int kZeros = 256;
  static constexpr int kBytes = kInt4 ? 384 : kPacking == Packing::kNvFp4 ? 256 : 128;

  __device__ __forceinline__ ImportedScaleCopies(const TileMatrix& m, const Slice& slice,
                                                 int /*units*/, int product, int lane,
                                                 const ItemRange& range) {
    constexpr int kPieces = BlockScaleBytes(kPacking) / 16;  // of a row block and group
    const bool zero = kInt4 && lane >= kZeros / 16;
    const int pieces = zero ? 1 : kPieces;
    const int index = zero ? lane - kZeros / 16 : lane;
    const int row_block = index / pieces & 1;
    const int group = index / (2 * pieces);
    const int block_bytes = pieces * 16;
    shift_ = GroupShift(m);
    group_ = group;
    groups_ = (m.k + 16 * m.group_k16s - 1) / (16 * m.group_k16s);
    stride_ = m.row_blocks * block_bytes;
    second_ = row_block == 0 ? 0 : (product == 0 || !zero) ? m.second_scales : block_bytes;
    at_ = m.scales + (zero ? m.zero_distance : 0) + (range.first << product) * block_bytes +
          index % pieces * 16 + second_;
    jump_ = (1 << range.groups_log2 << product) * block_bytes;
    copies_ = group < max(kUnitK16s >> shift_, 1) &&
              (!kInt4 || !zero || (m.zero_distance != 0 && lane < kBytes / 16));
    first_ = k16_ = slice.begin * 4;
  }

  __device__ __forceinline__ void Copy(uint32_t to, int /*left*/) {
    const int group = (k16_ >> shift_) + group_;
    if (copies_) CopyAsync16(to, at_ + group * stride_, group < groups_);
    k16_ += kUnitK16s;
  }
  __device__ __forceinline__ void NextItem() {
    at_ += jump_;
    k16_ = first_;
  }
  __device__ __forceinline__ void PairLone() { at_ -= second_; }

 private:
  static constexpr int kUnitK16s = UnitShape<kPacking>::kK64s * 4;

  const uint8_t* at_;  // of this lane in the item's first group
  int jump_, stride_;  // to the next item, to the next group
  int second_;         // from the first row block's to this lane's
  int shift_;          // log2 of the k16 of a group
  int group_;          // of this lane in a unit
  int groups_;         // of the matrix
  int first_, k16_;    // where the slice begins, where the next unit does
  bool copies_;
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_FEW_SCALE_COPIES_CUH_
