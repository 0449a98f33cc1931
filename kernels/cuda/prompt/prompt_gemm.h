// Family P: the grouped product of a prompt's tokens, compute-bound form: by wgmma on sm_90a, by
// mma.sync elsewhere (prompt_mma.cuh), where e4m3 products need sm_89. The rest of this comment is
// about wgmma.
//
// A unit is some tokens of one expert, at most `most`, which goes by the tokens of the layer; a
// tile is 128 or 256 rows of weights by the columns of a unit, half of them gate's and half up's,
// or all down's. Tiles of a product are listed expert by expert, the fullest expert first; the
// units of an expert take the same weights at the same time. A CTA's first tile is that of its
// number, the others it takes by ticket.
//
// Weights are the A operand, by way of registers, from the packed records as they are: bulk copies
// bring runs of 64 or 128 k of row blocks and their scales into a ring in shared memory, where
// warps gather the tokens' rows beside them. Two warp groups multiply, each one or two blocks of 64
// rows. A thread has the same channels of gate and of up, so that act(gate) * up needs no exchange.
//
// w8a8, w4a8 and w8a8_fp8 are multiplied in 8 bits: h is kept as floats and quantized in between.
// int8 products are exact in int32. Those of e4m3 lose bits below about 2^-13 of a sum, so sums of
// 128 k are added in fp32.
//
// Scales are never applied to weights, but for those of fp4, whose products with weights bf16 holds
// (prompt/prompt_imported.cuh): a weight becomes (u - zero) * 2^e, exact in bf16, where
// scale = f * 2^e, and sums are kept in units of the current group's f, by a factor f_before / f
// from group to group.
//
// Asymmetric packings have scale * zero: minus that, times the sum of a column's activations in the
// group, is added to the sums when the group begins.
//
// How a token's result is computed depends on the matrices and on how many tokens its expert has
// (design rule 6).
#ifndef MOERT_KERNELS_CUDA_PROMPT_PROMPT_GEMM_H_
#define MOERT_KERNELS_CUDA_PROMPT_PROMPT_GEMM_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"
#include "kernels/cuda/route/route.h"
#include "kernels/tuning/prompt_groups.h"

struct CUstream_st;

namespace moert::cuda {

/// Packings that have a product here.
constexpr int kPromptPackings = 14;
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
    case Packing::kW4A8:
      return 8;
    case Packing::kW4Zeros:
      return 9;
    case Packing::kW3:
      return 10;
    case Packing::kW2:
      return 11;
    case Packing::kF8:
      return 12;
    case Packing::kF8BlockF8:
      return 13;
    default:
      return -1;
  }
}
MOERT_HOST_DEVICE constexpr int PromptPacking(const DeviceMatrix& m) {
  if (m.packing == Packing::kW8A8 || m.packing == Packing::kW4A8 || m.packing == Packing::kF8) {
    const OperandForm form = m.packing == Packing::kW8A8   ? OperandForm::kInt8Token
                             : m.packing == Packing::kW4A8 ? OperandForm::kInt8Group
                                                           : OperandForm::kF8;
    return m.operand == static_cast<int>(form) ? PromptIndex(m.packing) : -1;
  }
  if (m.packing == Packing::kF8Block && m.operand == static_cast<int>(OperandForm::kF8Group)) {
    return PromptIndex(Packing::kF8BlockF8);
  }
  if (m.operand != 0) return -1;
  if (m.asymmetric == 0 || IsImported(m.packing)) return PromptIndex(m.packing);
  // Groups whose sums of activations there are: PromptSums.
  if (m.group_k16s != 4 && m.group_k16s != 8 && m.group_k16s != 4 * m.k64s) return -1;
  return PromptIndex(m.packing == Packing::kW4 ? Packing::kW4Zeros : m.packing);
}
/// Packings of products in 8 bits, a bit each: in e4m3, all.
constexpr uint32_t kPromptE4m3 =
    1u << PromptIndex(Packing::kF8) | 1u << PromptIndex(Packing::kF8BlockF8);
constexpr uint32_t kPrompt8Bits =
    kPromptE4m3 | 1u << PromptIndex(Packing::kW8A8) | 1u << PromptIndex(Packing::kW4A8);
/// Those whose gate and up leave h quantized, by wgmma. Its other product is of the same packing.
constexpr uint32_t kPromptQuantizes = 1u << PromptIndex(Packing::kF8BlockF8);
/// The operand that prompts read where matrices have this one, and whether some prompts read it.
MOERT_HOST_DEVICE constexpr int PromptOperand(int operand) {
  if (operand == static_cast<int>(OperandForm::kF8)) return static_cast<int>(OperandForm::kF8Bytes);
  const bool group = operand == static_cast<int>(OperandForm::kF8Group);
  return group ? static_cast<int>(OperandForm::kF8GroupBytes) : operand;
}
/// Whether no other kernels read it.
MOERT_HOST_DEVICE constexpr bool IsPromptOnly(int operand) {
  const auto form = static_cast<OperandForm>(operand);
  return form == OperandForm::kF8Bytes || form == OperandForm::kF8GroupBytes;
}
MOERT_HOST_DEVICE constexpr bool IsPromptOperand(int operand) {
  const auto form = static_cast<OperandForm>(operand);
  return form == OperandForm::kInt8Token || form == OperandForm::kInt8Group ||
         IsPromptOnly(operand);
}
/// Asymmetric packings, likewise.
constexpr uint32_t kPromptZeros = 1u << PromptIndex(Packing::kW4Zeros) |
                                  1u << PromptIndex(Packing::kW3) | 1u << PromptIndex(Packing::kW2);
/// Their sums of a row of activations: of every 64 channels, of every 128, of all.
MOERT_HOST_DEVICE constexpr int64_t PromptSums(int64_t channels) {
  return (channels + 63) / 64 + (channels + 127) / 128 + 1;
}
/// Whether experts of this format are multiplied by this family, of whose packings those of
/// `packings` (a bit each) are in use.
MOERT_HOST_DEVICE constexpr bool IsPromptFormat(const DeviceFormat& f, uint32_t packings) {
  const int gate = PromptPacking(f.gate), down = PromptPacking(f.down);
  return gate >= 0 && down >= 0 && PromptPacking(f.up) == gate &&
         (kPrompt8Bits >> gate & 1) == (kPrompt8Bits >> down & 1) &&
         (kPromptQuantizes >> gate & 1) == (kPromptQuantizes >> down & 1) &&
         (packings >> gate & 1) != 0 && (packings >> down & 1) != 0;
}

/// Columns that a unit of at most `most` may have, ascending. Four kinds in a kernel are what the
/// compiler bears: of more it waits for every single product.
constexpr int kPromptKinds = 4;
MOERT_HOST_DEVICE constexpr int PromptKind(int most, int i) {
  constexpr int kFew[] = {24, 32, 40, 64};
  constexpr int kTall[] = {64, 72, 104, 112};
  constexpr int kMore[] = {64, 128, 144, 160};
  constexpr int kMany[] = {128, 192, 256, 256};
  return most == 64 ? kFew[i] : most == 112 ? kTall[i] : most == 160 ? kMore[i] : kMany[i];
}
MOERT_HOST_DEVICE constexpr int LeastPromptColumns(int most) { return PromptKind(most, 0); }
/// The columns of a unit with so many tokens, at most `most`.
MOERT_HOST_DEVICE constexpr int PromptColumns(int most, int count) {
  int kind = 0;
  while (kind + 1 < kPromptKinds && PromptKind(most, kind) < count) ++kind;
  return PromptKind(most, kind);
}
/// The share of the units of an expert with so many tokens, which share them evenly; the last may
/// have less.
MOERT_HOST_DEVICE constexpr int PromptShare(int most, int count) {
  const int units = (count + most - 1) / most;
  return PromptColumns(most, (count + units - 1) / units);
}
constexpr int kPromptMosts[] = {64, 112, 160, 256};
/// Row blocks (of 16 rows) of a tile; half of them are gate's, or all are down's.
MOERT_HOST_DEVICE constexpr int PromptRowBlocks(int most) { return most <= 112 ? 16 : 8; }
/// Warp groups that multiply a tile, and blocks of 64 rows that each has.
MOERT_HOST_DEVICE constexpr int PromptWarpGroups(Packing packing, int most) {
  return most == 64 ? tuning::kPromptGroupsOfFew[PromptIndex(packing)] : 2;
}
MOERT_HOST_DEVICE constexpr int PromptBlocks(Packing packing, int most) {
  return PromptRowBlocks(most) / (4 * PromptWarpGroups(packing, most));
}

/// Whether the function has a place in the end of a tile.
MOERT_HOST_DEVICE constexpr bool IsPromptActivation(DeviceFunction function) {
  return function != DeviceFunction::kGelu;  // erf has none
}

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
  /// The next tile to take of each packing, not counting the first of every CTA.
  int32_t (*tickets)[kPromptPackings];
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

/// How products are multiplied.
enum class PromptForm : int32_t {
  kNone = 0,  // this family does not run
  kWgmma = 1,
  kMma = 2,  // units of at most 64 or 160 tokens
};
struct PromptDevice {
  PromptForm form = PromptForm::kNone;
  int32_t ctas = 0;       // of a product
  uint32_t packings = 0;  // that its code multiplies, a bit each
};
/// How the current device runs this build.
PromptDevice FindPromptDevice();

struct PromptGemmArgs {
  PromptTable table;
  PromptForm form = PromptForm::kWgmma;
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
  int32_t ctas = 0;             // PromptDevice's
  int32_t biased = 0;           // whether some expert has biases
  DeviceActivation activation;  // IsPromptActivation
  // For products in 8 bits, where they are in use.
  /// [tokens] packed rows (rows.h): kInt8Token, kInt8Group, kF8Bytes, kF8GroupBytes.
  const uint8_t* byte_x[4] = {};
  int64_t byte_x_stride = 0;  // bytes; tokens * byte_x_stride below 2^32
  int64_t byte_x_scales = 0;  // bytes from a row to its scales
  float* wide_h = nullptr;    // [MaxPromptRows, wide_h_stride]: h before it is quantized
  int64_t wide_h_stride = 0;
  // For products in 8 bits and asymmetric ones.
  float* h_columns = nullptr;    // scales or sums of a unit's h: [128 k or PromptSums][column]
  int64_t h_columns_stride = 0;  // floats a row of h
  int64_t x_sums = 0;            // bytes from a row of x to its PromptSums
};
/// Enqueues gate, up and down: x -> h -> out. 0 or a cudaError_t.
int LaunchPromptProducts(const PromptGemmArgs& args, CUstream_st* stream);

/// PromptSums of rows of x as PromptGemmArgs has them, `sums` bytes behind where each begins.
int LaunchSumPromptX(uint8_t* x, int64_t stride, int64_t sums, int rows, int channels,
                     CUstream_st* stream);
/// Sums of the rows of h of the units whose down is asymmetric, into h_columns.
int LaunchSumPromptH(const PromptGemmArgs& args, CUstream_st* stream);
/// Quantizes the rows of wide_h of the units whose down wants int8, into h and h_columns.
int LaunchQuantizePromptH(const PromptGemmArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_GEMM_H_
