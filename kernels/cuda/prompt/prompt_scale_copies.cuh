// How scales are copied into a stage of family P's ring, behind its weights.
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_SCALE_COPIES_CUH_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_SCALE_COPIES_CUH_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/prompt/prompt_ring.cuh"

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

/// The members of a PromptSlot that concern scales.
struct ScaleSource {
  const uint8_t* scales;
  int second_scales, zero_distance, row_blocks, row_tile;
  PromptScaleForm form;

  template <typename Slot>
  __device__ __forceinline__ explicit ScaleSource(const Slot& slot)
      : scales(slot.scales),
        second_scales(slot.second_scales),
        zero_distance(slot.zero_distance),
        row_blocks(slot.row_blocks),
        row_tile(slot.row_tile),
        form(slot.form) {}
};
/// Where a copying warp keeps them: in registers; or, where it has few, it reads the slot each
/// time.
template <typename Ring, typename Slot>
using ScalesOf = std::conditional_t<Ring::kGroups == 4, const Slot&, ScaleSource>;

/// A tile's row blocks of each of its matrices.
template <typename Ring, bool kGateUp>
struct TileBlocks {
  static constexpr int kMatrices = kGateUp ? 2 : 1;
  static constexpr int kBlocks = Ring::kRowBlocks / kMatrices;  // of a matrix
};

/// Copies a tile's scales, for imported packings: with every stage, the scales and zeros of its
/// groups. copy(to, from, bytes) issues one copy.
template <typename Ring, Packing kPacking, bool kGateUp, typename Slot>
class ImportedStageCopies : TileBlocks<Ring, kGateUp> {
  using Tile = TileBlocks<Ring, kGateUp>;
  static constexpr bool kZeros = kPacking == Packing::kW4Group;
  static constexpr int kBlockBytes = BlockScaleBytes(kPacking);

 public:
  __device__ __forceinline__ explicit ImportedStageCopies(const Slot& slot)
      : slot_(slot), blocks_(min(Tile::kBlocks, slot.row_blocks - Block())) {
    const int k16s = slot.form.group_k16s;
    shift_ = (k16s >= 2) + (k16s >= 4) + (k16s >= 8);
  }
  /// Bytes of the scales that are copied with stage k.
  __device__ __forceinline__ uint32_t Bytes(int k) const {
    const int of_group = blocks_ * (kBlockBytes + (HasZero() ? 16 : 0));
    return min(max(4 >> shift_, 1), slot_.form.groups - First(k)) * Tile::kMatrices * of_group;
  }
  template <typename Copier>
  __device__ __forceinline__ void Copy(int k, uint32_t scales, const Copier& copy) const {
    const int first = First(k);
#pragma unroll
    for (int g = 0; g < PromptGroups(kPacking); ++g) {
      if ((g > 0 && g >= 4 >> shift_) || first + g >= slot_.form.groups) continue;
      const int64_t row = int64_t{first + g} * slot_.row_blocks + Block();  // of row blocks
#pragma unroll
      for (int m = 0; m < Tile::kMatrices; ++m) {
        const int to = g * Ring::kRowBlocks + m * Tile::kBlocks;
        const uint8_t* const at = slot_.scales + (m != 0 ? slot_.second_scales : 0);
        copy(scales + to * kBlockBytes, at + row * kBlockBytes, blocks_ * kBlockBytes);
        if (HasZero()) {
          copy(scales + ImportedZerosAt(Ring::kRowBlocks) + to * 16,
               at + slot_.form.zero_distance + row * 16, blocks_ * 16);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int First(int k) const { return k * 4 >> shift_; }
  __device__ __forceinline__ int Block() const { return slot_.row_tile * Tile::kBlocks; }
  __device__ __forceinline__ bool HasZero() const {
    return kZeros && slot_.form.zero_distance != 0;
  }

  const ScalesOf<Ring, Slot> slot_;
  int blocks_, shift_;
};

/// The same for the other packings: with a piece in which a group begins, the group's scales and,
/// for HasZeros, scale * zero.
template <typename Ring, Packing kPacking, bool kGateUp, typename Slot>
class RowStageCopies : TileBlocks<Ring, kGateUp> {
  using Tile = TileBlocks<Ring, kGateUp>;
  static constexpr int kPlanes = HasZeros(kPacking) ? 2 : 1;
  static constexpr int kBlockBytes = BlockScaleBytes(kPacking);

 public:
  __device__ __forceinline__ explicit RowStageCopies(const Slot& slot) : slot_(slot) {
    constexpr int kK64s = PieceK64s(kPacking);
    const int block = slot.row_tile * Tile::kBlocks;
    at_ = slot.scales + int64_t{block} * kBlockBytes;
    bytes_ = min(Tile::kBlocks, slot.row_blocks - block) * kBlockBytes;
    pieces_ = (slot.k64s + kK64s - 1) / kK64s;
    of_group_ = (slot.group_k64s + kK64s - 1) / kK64s;
  }
  /// Bytes of the scales that are copied with the next stage.
  __device__ __forceinline__ uint32_t Bytes(int /*k*/) const {
    uint32_t bytes = 0;
    int next = next_;
#pragma unroll
    for (int p = 0; p < Ring::kPieces; ++p) {
      if (piece_ + p != next || next >= pieces_) continue;
      bytes += Tile::kMatrices * kPlanes * bytes_;
      next += of_group_;
    }
    return bytes;
  }
  /// Copies the scales of the next stage, and goes on to the stage after it.
  template <typename Copier>
  __device__ __forceinline__ void Copy(int /*k*/, uint32_t scales, const Copier& copy) {
#pragma unroll
    for (int p = 0; p < Ring::kPieces; ++p) {
      if (piece_ + p != next_ || next_ >= pieces_) continue;
#pragma unroll
      for (int i = 0; i < Tile::kMatrices * kPlanes; ++i) {
        const int matrix = i % Tile::kMatrices, plane = i / Tile::kMatrices;
        const int to = plane * Ring::kRowBlocks + matrix * Tile::kBlocks;
        copy(scales + p * Ring::kPieceScales + to * kBlockBytes,
             at_ + (matrix != 0 ? slot_.second_scales : 0) + (plane != 0 ? slot_.zero_distance : 0),
             bytes_);
      }
      next_ += of_group_;
      at_ += slot_.row_blocks * kBlockBytes;
    }
    piece_ += Ring::kPieces;
  }

 private:
  const ScalesOf<Ring, Slot> slot_;
  const uint8_t* at_;  // of the next group
  int bytes_;
  int pieces_, of_group_;     // pieces of the matrix, of a scale group
  int piece_ = 0, next_ = 0;  // first piece of the next stage, of the next group
};

struct NoStageCopies {
  template <typename Slot>
  __device__ __forceinline__ explicit NoStageCopies(const Slot& /*slot*/) {}
  __device__ __forceinline__ uint32_t Bytes(int /*k*/) const { return 0; }
  template <typename Copier>
  __device__ __forceinline__ void Copy(int /*k*/, uint32_t /*scales*/, const Copier&) const {}
};

template <typename Ring, Packing kPacking, bool kGateUp, typename Slot>
using StageScaleCopies = std::conditional_t<
    kPacking == Packing::kBf16, NoStageCopies,
    std::conditional_t<IsImported(kPacking), ImportedStageCopies<Ring, kPacking, kGateUp, Slot>,
                       RowStageCopies<Ring, kPacking, kGateUp, Slot>>>;

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_SCALE_COPIES_CUH_
