// The contract of the CPU kernels: plain data and plain functions, so that files compiled for one
// ISA can include it. Nothing here may be inline code (cmake/Flags.cmake says why).
//
// A weight matrix is a sequence of row blocks, 16 output channels each; a row block is `k16s`
// pieces of 16 input channels in fragment order (docs/reference/layout.md; bf16: 512 B), four of
// them a tile of 64. A kernel multiplies one or two row blocks by some activation rows ("columns"
// of the product): up to kNarrowColumns of them, wherever they lie, or up to kMaxColumns that lie
// equally far apart if it is a wide one.
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
constexpr int kMaxFlushTiles = 512;  // int32 holds the sum of so many tiles of 8-bit products

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
  // Wide kernels that turn weights into tiles: room for all tiles of each row block, 64-byte
  // aligned, or null. `tiles_kept`: an earlier call with these weights has left them there.
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
  // `scale_form` and (or null) 16 zeros, a byte each, groups scale_stride elements apart; or null,
  // a scale of the matrix.
  const uint8_t* raw_scales[kMaxBlocks];
  const uint8_t* zeros[kMaxBlocks];
  const float* matrix_scale[kMaxBlocks];
  int scale_form;
  int64_t groups;
  int64_t group_k16s;  // pieces a group; all of them when there is one group
};
using BlockGemmFn = void (*)(const BlockGemmArgs& args);

// Codes of imported schemes become bf16 (or floats), less their zeros, which is exact. Scales
// multiply the sums of a group, in AMX those of e2m1 the codes, which bf16 holds; the matrix's
// multiplies sums.

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
using PackFn = void (*)(const float* x, int64_t valid, int64_t k16s, uint8_t* out);

/// out[i] = act(gate[i]) * up[i], i < count; count is a multiple of 16. out may be gate or up.
using GluFn = void (*)(const float* gate, const float* up, int64_t count, float* out);

// Reference (baseline ISA).
void BlockGemmBf16Reference(const BlockGemmArgs& args);
void PackF32Reference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackBf16Reference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void BlockGemmFloatW8Reference(const BlockGemmArgs& args);
void BlockGemmFloatW4Reference(const BlockGemmArgs& args);
void BlockGemmFloatW3Reference(const BlockGemmArgs& args);
void BlockGemmFloatW2Reference(const BlockGemmArgs& args);
void BlockGemmF8Reference(const BlockGemmArgs& args);
void BlockGemmIntW8Reference(const BlockGemmArgs& args);
void BlockGemmIntW4Reference(const BlockGemmArgs& args);
void BlockGemmIntW3Reference(const BlockGemmArgs& args);
void BlockGemmIntW2Reference(const BlockGemmArgs& args);
void PackInt8GroupReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackInt8TokenReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackInt4GroupReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackInt4TokenReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackF8TokenReference(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void BlockGemmImportedW4Reference(const BlockGemmArgs& args);
void BlockGemmImportedF4Reference(const BlockGemmArgs& args);
void BlockGemmImportedF8Reference(const BlockGemmArgs& args);
void GluRelu2Reference(const float* gate, const float* up, int64_t count, float* out);
void GluSiluReference(const float* gate, const float* up, int64_t count, float* out);
void GluGeluReference(const float* gate, const float* up, int64_t count, float* out);
void GluGeluTanhReference(const float* gate, const float* up, int64_t count, float* out);

// Widened bf16 weights, fp32 multiply-add. The operand is fp32, in the order of the weights;
// `Rounded` packs values rounded to bf16 first.
void BlockGemmBf16F32Avx2(const BlockGemmArgs& args);
void PackF32Avx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackRoundedAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void GluSiluAvx2(const float* gate, const float* up, int64_t count, float* out);
void GluGeluTanhAvx2(const float* gate, const float* up, int64_t count, float* out);

void BlockGemmBf16F32Avx512(const BlockGemmArgs& args);
void PackF32Avx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackRoundedAvx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void GluSiluAvx512(const float* gate, const float* up, int64_t count, float* out);
void GluGeluTanhAvx512(const float* gate, const float* up, int64_t count, float* out);

// bf16 pairs, vdpbf16ps.
void BlockGemmBf16Avx512Bf16(const BlockGemmArgs& args);
void PackBf16Avx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out);

// Quantized weights, bf16 or fp32 activations; rows carry the sums of each tile behind them.
void BlockGemmFloatW8Avx512Bf16(const BlockGemmArgs& args);
void BlockGemmFloatW4Avx512Bf16(const BlockGemmArgs& args);
void BlockGemmFloatW3Avx512Bf16(const BlockGemmArgs& args);
void BlockGemmFloatW2Avx512Bf16(const BlockGemmArgs& args);
void PackSummedBf16Avx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out);

void BlockGemmFloatW8Avx2(const BlockGemmArgs& args);
void BlockGemmFloatW4Avx2(const BlockGemmArgs& args);
void BlockGemmFloatW3Avx2(const BlockGemmArgs& args);
void BlockGemmFloatW2Avx2(const BlockGemmArgs& args);
void PackSummedF32Avx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackSummedRoundedAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);

// Quantized weights, integer activations.
void BlockGemmIntW8Vnni(const BlockGemmArgs& args);
void BlockGemmIntW4Vnni(const BlockGemmArgs& args);
void BlockGemmIntW3Vnni(const BlockGemmArgs& args);
void BlockGemmIntW2Vnni(const BlockGemmArgs& args);

void BlockGemmIntW8Avx2(const BlockGemmArgs& args);
void BlockGemmIntW4Avx2(const BlockGemmArgs& args);
void BlockGemmIntW3Avx2(const BlockGemmArgs& args);
void BlockGemmIntW2Avx2(const BlockGemmArgs& args);
void PackInt8GroupAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackInt8TokenAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackInt4GroupAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void PackInt4TokenAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);

// e4m3 activations and weights, which hold no NaN. The operand is values on the e4m3 grid in the
// order of channels, fp32 or bf16, then TileScale[tiles], whose scale is the row's.
void BlockGemmF8Avx2(const BlockGemmArgs& args);
void PackF8TokenAvx2(const float* x, int64_t valid, int64_t k16s, uint8_t* out);
void BlockGemmF8Avx512Bf16(const BlockGemmArgs& args);
void PackF8TokenAvx512(const float* x, int64_t valid, int64_t k16s, uint8_t* out);

// Imported schemes; rows as for quantized weights, whose sums are not read.
void BlockGemmImportedW4Avx2(const BlockGemmArgs& args);
void BlockGemmImportedF4Avx2(const BlockGemmArgs& args);
void BlockGemmImportedF8Avx2(const BlockGemmArgs& args);
void BlockGemmImportedW4Avx512Bf16(const BlockGemmArgs& args);
void BlockGemmImportedF4Avx512Bf16(const BlockGemmArgs& args);
void BlockGemmImportedF8Avx512Bf16(const BlockGemmArgs& args);

// Wide kernels, AMX: the thread needs the kernel's permission to use tiles (kernel_set.cc); they
// leave no tile state behind. bf16 activations are packed as for vdpbf16ps.
void BlockGemmBf16Amx(const BlockGemmArgs& args);
void BlockGemmFloatW8Amx(const BlockGemmArgs& args);
void BlockGemmFloatW4Amx(const BlockGemmArgs& args);
void BlockGemmFloatW3Amx(const BlockGemmArgs& args);
void BlockGemmFloatW2Amx(const BlockGemmArgs& args);
void BlockGemmF8Amx(const BlockGemmArgs& args);
void BlockGemmImportedW4Amx(const BlockGemmArgs& args);
void BlockGemmImportedF4Amx(const BlockGemmArgs& args);
void BlockGemmImportedF8Amx(const BlockGemmArgs& args);
void BlockGemmIntW8Amx(const BlockGemmArgs& args);
void BlockGemmIntW4Amx(const BlockGemmArgs& args);
void BlockGemmIntW3Amx(const BlockGemmArgs& args);
void BlockGemmIntW2Amx(const BlockGemmArgs& args);

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_BLOCK_GEMM_H_
