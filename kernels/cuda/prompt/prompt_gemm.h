// Family P: the compute-bound grouped GEMM for the tokens of a prompt. It uses wgmma on sm_90a and
// mma.sync elsewhere (prompt_mma.cuh), where e4m3 products need sm_89. The rest of this comment is
// about wgmma.
//
// A unit is a set of at most `most` tokens of one expert; `most` follows from the mean number of
// tokens per expert. A tile is 128 or 256 rows of weights by the columns of a unit; half of the
// rows are gate's and half up's, or all are down's. The tiles of a product are listed expert by
// expert, the fullest expert first. Tiles of an expert's units that read the same weights are
// adjacent, so that they read them at the same time. A CTA's first tile is given by its block
// index; it takes the others by ticket.
//
// Weights are the A operand, which wgmma reads from registers. Bulk copies bring runs of 64 or 128
// k of the packed row blocks, unchanged, and their scales into a ring in shared memory; other warps
// gather the tokens' rows into it. Two or four warp groups multiply, each one or two blocks of 64
// rows. At the end a thread has the same channels of gate and of up; only four warp groups must
// exchange sums for that (prompt_warp.cuh).
//
// w8a8, w4a8 and w8a8_fp8 are multiplied in 8 bits: gate and up store h in bf16, and another kernel
// quantizes it before down. int8 products are exact in int32. e4m3 products lose bits below
// about 2^-13 of a sum, so the sums of every 128 k are added up in fp32.
//
// A scale is split into f * 2^e. A weight becomes (u - zero) * 2^e, which is exact in bf16. Sums
// are kept in units of the current group's f: when the group changes, they are multiplied by
// f_before / f. Only fp4 weights are multiplied by their whole scales, since bf16 holds these
// products exactly (prompt/prompt_imported.cuh).
//
// Asymmetric packings store scale * zero. When a group begins, -(scale * zero) times the sum of a
// column's activations in that group is added to the column's sums.
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

/// Number of packings that this family multiplies.
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
  // Only for these group sizes are there sums of activations: PromptSums.
  if (m.group_k16s != 4 && m.group_k16s != 8 && m.group_k16s != 4 * m.k64s) return -1;
  return PromptIndex(m.packing == Packing::kW4 ? Packing::kW4Zeros : m.packing);
}
/// Sets of packings, a bit each by PromptIndex: multiplied in e4m3, and all that are multiplied in
/// 8 bits.
constexpr uint32_t kPromptE4m3 =
    1u << PromptIndex(Packing::kF8) | 1u << PromptIndex(Packing::kF8BlockF8);
constexpr uint32_t kPrompt8Bits =
    kPromptE4m3 | 1u << PromptIndex(Packing::kW8A8) | 1u << PromptIndex(Packing::kW4A8);
/// Packings whose gate and up store h already quantized (with wgmma). Down has the same packing
/// then.
constexpr uint32_t kPromptQuantizes = 1u << PromptIndex(Packing::kF8BlockF8);
/// The operand form that this family reads for matrices whose operand form is `operand`.
MOERT_HOST_DEVICE constexpr int PromptOperand(int operand) {
  if (operand == static_cast<int>(OperandForm::kF8)) return static_cast<int>(OperandForm::kF8Bytes);
  const bool group = operand == static_cast<int>(OperandForm::kF8Group);
  return group ? static_cast<int>(OperandForm::kF8GroupBytes) : operand;
}
/// Whether only this family reads the operand form.
MOERT_HOST_DEVICE constexpr bool IsPromptOnly(int operand) {
  const auto form = static_cast<OperandForm>(operand);
  return form == OperandForm::kF8Bytes || form == OperandForm::kF8GroupBytes;
}
MOERT_HOST_DEVICE constexpr bool IsPromptOperand(int operand) {
  const auto form = static_cast<OperandForm>(operand);
  return form == OperandForm::kInt8Token || form == OperandForm::kInt8Group ||
         IsPromptOnly(operand);
}
/// Asymmetric packings, a bit each by PromptIndex.
constexpr uint32_t kPromptZeros = 1u << PromptIndex(Packing::kW4Zeros) |
                                  1u << PromptIndex(Packing::kW3) | 1u << PromptIndex(Packing::kW2);
/// Number of sums that they need of a row of activations: of every 64 channels, of every 128, of
/// all.
MOERT_HOST_DEVICE constexpr int64_t PromptSums(int64_t channels) {
  return (channels + 63) / 64 + (channels + 127) / 128 + 1;
}
/// Whether this family multiplies experts of this format. packings: those of its packings that are
/// in use, a bit each.
MOERT_HOST_DEVICE constexpr bool IsPromptFormat(const DeviceFormat& f, uint32_t packings) {
  const int gate = PromptPacking(f.gate), down = PromptPacking(f.down);
  return gate >= 0 && down >= 0 && PromptPacking(f.up) == gate &&
         (kPrompt8Bits >> gate & 1) == (kPrompt8Bits >> down & 1) &&
         (kPromptQuantizes >> gate & 1) == (kPromptQuantizes >> down & 1) &&
         (packings >> gate & 1) != 0 && (packings >> down & 1) != 0;
}

/// The i-th number of columns that a unit of at most `most` tokens may have, ascending. A kernel
/// has four of them, or three if one is 256: with more, the compiler inserts a wait after every
/// single product.
constexpr int kPromptKinds = 4;
MOERT_HOST_DEVICE constexpr int PromptKind(int most, int i) {
  constexpr int kFew[] = {24, 32, 40, 64};
  constexpr int kTall[] = {64, 72, 104, 112};
  constexpr int kMore[] = {64, 128, 144, 160};
  constexpr int kMany[] = {144, 192, 256, 256};
  return most == 64 ? kFew[i] : most == 112 ? kTall[i] : most == 160 ? kMore[i] : kMany[i];
}
MOERT_HOST_DEVICE constexpr int LeastPromptColumns(int most) { return PromptKind(most, 0); }
/// The columns of a unit of `count` tokens.
MOERT_HOST_DEVICE constexpr int PromptColumns(int most, int count) {
  int kind = 0;
  while (kind + 1 < kPromptKinds && PromptKind(most, kind) < count) ++kind;
  return PromptKind(most, kind);
}
/// The columns of each unit of an expert with `count` tokens. The units divide the tokens evenly;
/// the last one may have fewer.
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

/// Whether the epilogue of a tile can compute the function.
MOERT_HOST_DEVICE constexpr bool IsPromptActivation(DeviceFunction function) {
  // The epilogue has no erf.
  return function != DeviceFunction::kGelu;
}

/// Tokens of one expert that are multiplied together.
struct PromptUnit {
  TileMatrix matrix[2];  // gate and up, down
  const int32_t* slots;  // [count]
  int32_t count;
  int32_t columns;  // count, rounded up to a PromptKind
  int32_t h_row;    // the unit's first row of h: the columns of all units before it
  int32_t unused;
};

/// Arrays in device memory.
struct PromptTable {
  PromptUnit* units;
  uint32_t* tiles[2];  // by product: unit | (row tile << 16)
  /// [product][packing]: where the packing's tiles begin; those of packing i end where i + 1
  /// begins.
  int32_t (*begins)[kPromptPackings + 1];
  /// [product][packing]: the next ticket. Tile = ticket + CTAs, as every CTA's first tile needs
  /// none.
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
  uint32_t packings = 0;  // packings that its code multiplies, a bit each
};
/// How this build runs on the current device.
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
  uint8_t* rounded_h = nullptr;  // h in bf16 before it is quantized, laid out as h of bf16 is
  // For products in 8 bits and asymmetric ones.
  float* h_columns = nullptr;    // scales or sums of a unit's h: [128 k or PromptSums][column]
  int64_t h_columns_stride = 0;  // floats a row of h
  int64_t x_sums = 0;            // bytes from a row of x to its PromptSums
};
/// Enqueues gate, up and down: x -> h -> out. 0 or a cudaError_t.
int LaunchPromptProducts(const PromptGemmArgs& args, CUstream_st* stream);

/// Computes the PromptSums of rows of x (as in PromptGemmArgs) and stores each row's sums `sums`
/// bytes behind the row's begin.
int LaunchSumPromptX(uint8_t* x, int64_t stride, int64_t sums, int rows, int channels,
                     CUstream_st* stream);
/// Computes the PromptSums of the rows of h, for units whose down is asymmetric, into h_columns.
int LaunchSumPromptH(const PromptGemmArgs& args, CUstream_st* stream);
/// Quantizes the rows of rounded_h, for units whose down needs a quantized operand, into h and
/// h_columns.
int LaunchQuantizePromptH(const PromptGemmArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_PROMPT_PROMPT_GEMM_H_
