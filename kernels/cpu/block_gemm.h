// The contract of the CPU kernels: plain data and plain functions, so that files compiled for one
// ISA can include it. Nothing here may be inline code (cmake/Flags.cmake says why).
//
// A weight matrix is a sequence of row blocks, 16 output channels each; a row block is `k16s`
// pieces of 16 input channels in fragment order (docs/reference/layout.md; bf16: 512 B), four of
// them a tile of 64. A kernel multiplies one or two row blocks by some activation rows ("columns"
// of the product): up to kNarrowColumns rows anywhere in memory or, if it is a wide kernel, up to
// kMaxColumns rows at equal distances.
//
// Every element of the product is summed in an order over k that the kernel alone fixes: it never
// depends on how many columns or blocks are computed beside it.
#ifndef MOERT_KERNELS_CPU_BLOCK_GEMM_H_
#define MOERT_KERNELS_CPU_BLOCK_GEMM_H_

#include <cstdint>

namespace moert::kernels {

constexpr int kBlockRows = 16;
constexpr int kPieceK = 16;
constexpr int kMaxBlocks = 2;
constexpr int kNarrowColumns = 8;
constexpr int kMaxColumns = 32;
constexpr int kBf16PieceBytes = 512;
constexpr int kTilePieces = 4;
constexpr int kTileK = 64;
constexpr int kInt8GroupTiles = 2;   // tiles that share one scale of int8 or int4 activations
constexpr int kMaxFlushTiles = 512;  // int32 holds the sum of this many tiles of 8-bit products

/// Weight kinds, by the bits that a kernel reads.
enum WeightKind {
  kBf16Weights,
  kW8,
  kW4,
  kW3,
  kW2,
  kF8Weights,
  // Imported schemes: int4 with any scales and zeros, e2m1, e4m3 in groups.
  kImportedW4,
  kImportedF4,
  kImportedF8,
  kWeightKinds
};

/// How the scales of imported schemes are stored: moert::ScaleType.
enum ScaleForm { kScaleBF16, kScaleF16, kScaleF32, kScaleE8M0, kScaleE4M3 };

struct BlockGemmArgs {
  const uint8_t* weights[kMaxBlocks];  // row blocks, 64-byte aligned
  int blocks;                          // 1..kMaxBlocks
  int columns;                         // 1..kNarrowColumns; of a wide kernel 1..kMaxColumns
  int64_t k16s;                        // pieces a row block; a multiple of 4
  const uint8_t* x[kMaxColumns];       // packed activation rows (PackFn), 64-byte aligned; for a
                                       // wide kernel x[c] - x[0] = c (x[1] - x[0])
  float* out;                          // [blocks][kMaxColumns][kBlockRows], 64-byte aligned
  const uint8_t* next;                 // weights read after these: fetched ahead, never used;
                                       // must not be null
  // Wide kernels that turn weights into tiles: memory for all tiles of each row block, 64-byte
  // aligned, or null. `tiles_kept`: an earlier call with these weights has left the tiles there.
  uint8_t* tiles[kMaxBlocks];
  bool tiles_kept;

  // Quantized weights only. For each row block, 16 bf16 scales a group of input channels, groups
  // `scale_stride` elements apart; likewise scale * zero, null for symmetric codes.
  const uint16_t* scales[kMaxBlocks];
  const uint16_t* offsets[kMaxBlocks];
  int64_t scale_stride;
  int64_t group_tiles;  // tiles a group; at least all of them when there is one group
  int64_t flush_tiles;  // tiles that share weight scales and activation scale, at most
                        // kMaxFlushTiles; divides group_tiles unless there is one group

  // Imported schemes only, in place of the above. For each row block, 16 scales a group in
  // `scale_form` and (or null) 16 zeros, a byte each, groups scale_stride elements apart; and a
  // scale of the matrix, or null.
  const uint8_t* raw_scales[kMaxBlocks];
  const uint8_t* zeros[kMaxBlocks];
  const float* matrix_scale[kMaxBlocks];
  int scale_form;
  int64_t groups;
  int64_t group_k16s;  // pieces a group; all of them when there is one group
};
using GemmKernel = void(const BlockGemmArgs& args);
using BlockGemmFn = GemmKernel*;

// Codes of imported schemes become bf16 (or floats), less their zeros, which is exact. Scales
// multiply the sums of a group; only in AMX do e2m1 scales multiply the codes, whose products bf16
// holds. The matrix's scale multiplies sums.

/// Follows the codes of an integer (or fp8) activation row, one for each tile.
struct TileScale {
  float scale;  // an activation is scale * code; NaN if one that shares it is not finite
  int32_t sum;  // of the tile's codes
};

// Integer activations (int8; int4 codes lie in [-7, 7] of an int8): of each piece, 16 codes in the
// order 2t, 2t+8, 2t+1, 2t+9 for t = 0..3, then TileScale[tiles]. A row is the same bytes in every
// kernel set, and so is the product: with the codes u of a row of weights, for each flush of tiles
// in ascending order,
//   dot = sum u * code, sum = sum code, in int32
//   symmetric:  out = fma(float(dot - 2^(bits-1) * sum), scale_w * scale_x, out)
//   asymmetric: out = fma(float(dot), scale_w * scale_x, out)
//               out = fma(float(-sum), offset_w * scale_x, out)

/// Packs `k16s` pieces of an activation row, of which the first `valid` channels are read from `x`
/// and the others are zero, into the operand form of the kernels that it is paired with.
using PackKernel = void(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
using PackFn = PackKernel*;

/// out[i] = act(gate[i]) * up[i], i < count; count is a multiple of 16. out may be gate or up.
using GluKernel = void(const float* gate, const float* up, int64_t count, float* out);
using GluFn = GluKernel*;

// Reference (baseline ISA).
GemmKernel BlockGemmBf16Reference, BlockGemmFloatW8Reference, BlockGemmFloatW4Reference,
    BlockGemmFloatW3Reference, BlockGemmFloatW2Reference, BlockGemmF8Reference,
    BlockGemmIntW8Reference, BlockGemmIntW4Reference, BlockGemmIntW3Reference,
    BlockGemmIntW2Reference, BlockGemmImportedW4Reference, BlockGemmImportedF4Reference,
    BlockGemmImportedF8Reference;
PackKernel PackF32Reference, PackBf16Reference, PackInt8GroupReference, PackInt8TokenReference,
    PackInt4GroupReference, PackInt4TokenReference, PackF8TokenReference;
GluKernel GluRelu2Reference, GluSiluReference, GluGeluReference, GluGeluTanhReference;

// Widened bf16 weights, fp32 multiply-add. The operand is fp32, in the order of the weights;
// `Rounded` packs values rounded to bf16 first.
GemmKernel BlockGemmBf16F32Avx2;
PackKernel PackF32Avx2, PackRoundedAvx2;
GluKernel GluSiluAvx2, GluGeluTanhAvx2;

GemmKernel BlockGemmBf16F32Avx512;
PackKernel PackF32Avx512, PackRoundedAvx512;
GluKernel GluSiluAvx512, GluGeluTanhAvx512;

// bf16 pairs, vdpbf16ps.
GemmKernel BlockGemmBf16Avx512Bf16;
PackKernel PackBf16Avx512;

// Quantized weights, bf16 or fp32 activations; each row is followed by the sums of its tiles.
GemmKernel BlockGemmFloatW8Avx512Bf16, BlockGemmFloatW4Avx512Bf16, BlockGemmFloatW3Avx512Bf16,
    BlockGemmFloatW2Avx512Bf16;
PackKernel PackSummedBf16Avx512;

GemmKernel BlockGemmFloatW8Avx2, BlockGemmFloatW4Avx2, BlockGemmFloatW3Avx2, BlockGemmFloatW2Avx2;
PackKernel PackSummedF32Avx2, PackSummedRoundedAvx2;

// Quantized weights, integer activations.
GemmKernel BlockGemmIntW8Vnni, BlockGemmIntW4Vnni, BlockGemmIntW3Vnni, BlockGemmIntW2Vnni;

GemmKernel BlockGemmIntW8Avx2, BlockGemmIntW4Avx2, BlockGemmIntW3Avx2, BlockGemmIntW2Avx2;
PackKernel PackInt8GroupAvx2, PackInt8TokenAvx2, PackInt4GroupAvx2, PackInt4TokenAvx2;

// e4m3 activations and weights, which hold no NaN. The operand is values on the e4m3 grid in the
// order of channels, fp32 or bf16, then TileScale[tiles], whose scale is the row's.
GemmKernel BlockGemmF8Avx2, BlockGemmF8Avx512Bf16;
PackKernel PackF8TokenAvx2, PackF8TokenAvx512;

// Imported schemes; rows as for quantized weights, whose sums are not read.
GemmKernel BlockGemmImportedW4Avx2, BlockGemmImportedF4Avx2, BlockGemmImportedF8Avx2,
    BlockGemmImportedW4Avx512Bf16, BlockGemmImportedF4Avx512Bf16, BlockGemmImportedF8Avx512Bf16;

// Wide kernels, AMX: the process needs the operating system's permission to use tiles
// (kernel_set.cc); the kernels leave no tile state behind. bf16 activations are packed as for
// vdpbf16ps.
GemmKernel BlockGemmBf16Amx, BlockGemmFloatW8Amx, BlockGemmFloatW4Amx, BlockGemmFloatW3Amx,
    BlockGemmFloatW2Amx, BlockGemmF8Amx, BlockGemmImportedW4Amx, BlockGemmImportedF4Amx,
    BlockGemmImportedF8Amx, BlockGemmIntW8Amx, BlockGemmIntW4Amx, BlockGemmIntW3Amx,
    BlockGemmIntW2Amx;

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_BLOCK_GEMM_H_
