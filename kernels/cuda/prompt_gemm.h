// Family P: the grouped product of a prompt's tokens, compute-bound form (wgmma, sm_90a).
//
// A unit is some tokens of one expert, at most `most`, which goes by the tokens of the layer; a
// tile is 128 rows of weights by the columns of a unit: 64 channels of gate and of up, or 128 of
// down. Tiles of a product are listed expert by expert, the fullest expert first; the units of an
// expert take the same weights at the same time. CTAs take tiles by ticket.
//
// Weights are the A operand, by way of registers, from the packed records as they are: bulk copies
// bring runs of 64 k of eight row blocks into a ring in shared memory, where warps gather the
// tokens' rows beside them. Two warp groups multiply, each 64 rows. A warp's 16 rows of gate and up
// are eight channels of both, so that act(gate) * up needs no exchange.
//
// w8a8 has int8 products, exact in int32: h is kept as floats and quantized in between.
//
// Scales are never applied to weights, but for those of fp4, whose products with weights bf16 holds
// (primitives/prompt_imported.cuh): a weight becomes (u - zero) * 2^e, exact in bf16, where
// scale = f * 2^e, and sums are kept in units of the current group's f, by a factor f_before / f
// from group to group.
//
// How a token's result is computed depends on the matrices and on how many tokens its expert has
// (design rule 6).
#ifndef MOERT_KERNELS_CUDA_PROMPT_GEMM_H_
#define MOERT_KERNELS_CUDA_PROMPT_GEMM_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route.h"

struct CUstream_st;

namespace moert::cuda {

/// Packings that have a product here.
constexpr int kPromptPackings = 8;
MOERT_HOST_DEVICE constexpr int PromptIndex(Packing packing) {
  switch (packing) {
    case Packing::kBf16:
      return 0;
    case Packing::kW8:
      return 1;
    case Packing::kW4:
      return 2;
    case Packing::kF8Block:
      return 3;
    case Packing::kMxFp4:
      return 4;
    case Packing::kNvFp4:
      return 5;
    case Packing::kW4Group:
    case Packing::kW4GroupF16:
      return 6;
    case Packing::kW8A8:
      return 7;
    default:
      return -1;
  }
}
MOERT_HOST_DEVICE constexpr int PromptPacking(const DeviceMatrix& m) {
  if (m.packing == Packing::kW8A8) {
    return m.operand == static_cast<int>(OperandForm::kInt8Token) ? PromptIndex(m.packing) : -1;
  }
  if (m.operand != 0 || (m.asymmetric != 0 && !IsImported(m.packing))) return -1;
  return PromptIndex(m.packing);
}
/// Whether experts of this format are multiplied by this family, of whose packings those of
/// `packings` (a bit each) are in use.
MOERT_HOST_DEVICE constexpr bool IsPromptFormat(const DeviceFormat& f, uint32_t packings) {
  const int gate = PromptPacking(f.gate), down = PromptPacking(f.down);
  constexpr int kInt8 = PromptIndex(Packing::kW8A8);
  return gate >= 0 && down >= 0 && PromptPacking(f.up) == gate &&
         (gate == kInt8) == (down == kInt8) && (packings >> gate & 1) != 0 &&
         (packings >> down & 1) != 0;
}

/// Columns that a unit may have: `most`, and some steps less.
MOERT_HOST_DEVICE constexpr int PromptStep(int most) {
  return most == 256 ? 64 : most == 160 ? 32 : 16;
}
MOERT_HOST_DEVICE constexpr int PromptKinds(int most) { return most == 256 ? 3 : 4; }
MOERT_HOST_DEVICE constexpr int LeastPromptColumns(int most) {
  return most - (PromptKinds(most) - 1) * PromptStep(most);
}
/// Of a unit with so many tokens, at most `most`.
MOERT_HOST_DEVICE constexpr int PromptColumns(int most, int count) {
  const int step = PromptStep(most), least = LeastPromptColumns(most);
  const int columns = (count + step - 1) / step * step;
  return columns < least ? least : columns;
}
/// Of the units of an expert with so many tokens, which share them evenly; the last may have less.
MOERT_HOST_DEVICE constexpr int PromptShare(int most, int count) {
  const int units = (count + most - 1) / most;
  return PromptColumns(most, (count + units - 1) / units);
}
constexpr int kPromptMosts[] = {64, 160, 256};

/// Tokens of one expert that are multiplied together.
struct PromptUnit {
  TileMatrix matrix[2];  // gate and up, down
  const int32_t* slots;  // [count]
  int32_t count;
  int32_t columns;  // count, rounded up to a step
  int32_t h_row;    // columns of the units before
  int32_t unused;
};

/// Arrays in device memory.
struct PromptTable {
  PromptUnit* units;
  uint32_t* tiles[2];  // by product: unit | (row tile << 16)
  /// [product][packing]: where its tiles begin; those of packing i end where i + 1 begins.
  int32_t (*begins)[kPromptPackings + 1];
  int32_t (*tickets)[kPromptPackings];  // tiles taken, beyond one a CTA
  int32_t* unit_count;
};
MOERT_HOST_DEVICE constexpr int64_t MaxPromptUnits(int64_t tokens, int64_t top_k, int64_t experts,
                                                   int64_t most) {
  const int64_t pairs = tokens * top_k;
  return pairs / most + (pairs < experts ? pairs : experts) + tokens / most + 1;
}
/// Rows of h, all units together: only an expert's last unit has columns without a token.
MOERT_HOST_DEVICE constexpr int64_t MaxPromptRows(int64_t tokens, int64_t top_k, int64_t experts) {
  const int64_t pairs = tokens * top_k;
  return pairs + tokens + ((pairs < experts ? pairs : experts) + 1) * LeastPromptColumns(256);
}

struct MakePromptTilesArgs {
  PromptTable table;
  int32_t most = 256;     // one of kPromptMosts
  uint32_t packings = 0;  // see IsPromptFormat
  const DeviceFormat* formats = nullptr;
  const ExpertHandle* handles = nullptr;  // as MakeTilesArgs
  SlotGroups groups;
  const int32_t* shared_slots = nullptr;
  int32_t experts = 0;
  int32_t tokens = 0;
  ExpertSet wave;
};
int LaunchMakePromptTiles(const MakePromptTilesArgs& args, CUstream_st* stream);

struct PromptGemmArgs {
  PromptTable table;
  int32_t most = 256;          // one of kPromptMosts
  uint32_t packings[2] = {};   // in use, a bit each, by product
  const uint8_t* x = nullptr;  // [tokens] rows of bf16 in their order, zeros up to whole 64
  int64_t x_stride = 0;        // bytes, a multiple of 16; tokens * x_stride below 2^32
  uint8_t* h = nullptr;        // MaxPromptRows rows of h_stride
  int64_t h_stride = 0;        // bytes: 128 for every 64 of the widest K of down
  uint16_t* out = nullptr;     // [slots, out_stride] bf16: down h
  int64_t out_stride = 0;      // a multiple of 64
  int32_t pairs = 0;           // as GroupGemmArgs
  int32_t top_k = 1;
  int32_t activation = 0;
  int32_t ctas = 0;  // PromptGemmCtas()
  // Of int8 products, where they are in use.
  const uint8_t* int8_x = nullptr;  // [tokens] packed rows (rows.h), OperandForm::kInt8Token
  int64_t int8_x_stride = 0;        // bytes; tokens * int8_x_stride below 2^32
  int64_t int8_x_scales = 0;        // bytes from a row to its scale
  float* wide_h = nullptr;          // [MaxPromptRows, wide_h_stride]: h before it is quantized
  int64_t wide_h_stride = 0;
  float* h_scales = nullptr;  // [MaxPromptRows]
};
/// Enqueues gate, up and down: x -> h -> out. 0 or a cudaError_t.
int LaunchPromptProducts(const PromptGemmArgs& args, CUstream_st* stream);

/// Quantizes the rows of wide_h of the units whose down wants int8, into h and h_scales.
int LaunchQuantizePromptH(const PromptGemmArgs& args, CUstream_st* stream);

/// CTAs of a product on the current device; 0 where this family does not run.
int PromptGemmCtas();

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_GEMM_H_
