// Imported schemes in the "reference" set: weights as the exact products of scales and codes,
// summed in double precision.
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/reference/codes.h"

namespace moert::kernels {
namespace {

enum class Codes { kInt4, kE2M1, kE4M3 };

double ScaleAt(const uint8_t* scales, int form, int64_t at) {
  uint16_t half = 0;
  float wide = 0;
  switch (form) {
    case kScaleBF16:
      std::memcpy(&half, scales + at * 2, 2);
      return Bf16ToF32(half);
    case kScaleF16:
      std::memcpy(&half, scales + at * 2, 2);
      return F16ToF32(half);
    case kScaleF32:
      std::memcpy(&wide, scales + at * 4, 4);
      return wide;
    case kScaleE8M0:
      return std::ldexp(1.0, scales[at] - 127);
    default:
      return F8E4M3ToF32(scales[at]);
  }
}

double E2M1(unsigned code) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

// The 64 weights of a row in one tile.
template <Codes kCodes>
void WidenRow(const BlockGemmArgs& args, int block, int64_t tile, int row, const uint8_t* codes,
              double* weights) {
  for (int k = 0; k < kTileK; ++k) {
    const int64_t group = (tile * kTilePieces + k / kPieceK) / args.group_k16s;
    if (group >= args.groups) {
      weights[k] = 0;  // padding
      continue;
    }
    const int64_t at = group * args.scale_stride + row;
    const double scale = ScaleAt(args.raw_scales[block], args.scale_form, at);
    if constexpr (kCodes == Codes::kInt4) {
      weights[k] = scale * (codes[k] - (args.zeros[block] != nullptr ? args.zeros[block][at] : 8));
    } else if constexpr (kCodes == Codes::kE2M1) {
      weights[k] = scale * E2M1(codes[k]);
    } else {
      weights[k] = scale * F8E4M3ToF32(codes[k]);
    }
    if (args.matrix_scale[block] != nullptr) weights[k] *= *args.matrix_scale[block];
  }
}

template <Codes kCodes>
void Gemm(const BlockGemmArgs& args) {
  constexpr int kBits = kCodes == Codes::kE4M3 ? 8 : 4;
  const int64_t tiles = args.k16s / kTilePieces;
  for (int block = 0; block < args.blocks; ++block) {
    double sums[kMaxColumns][kBlockRows] = {};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const TileCodes codes = ReadTile(kBits, args.weights[block] + tile * kBits * 128);
      for (int row = 0; row < kBlockRows; ++row) {
        double weights[kTileK];
        WidenRow<kCodes>(args, block, tile, row, codes.at[row], weights);
        for (int column = 0; column < args.columns; ++column) {
          const auto* x = reinterpret_cast<const float*>(args.x[column]) + tile * kTileK;
          for (int k = 0; k < kTileK; ++k) sums[column][row] += weights[k] * x[k];
        }
      }
    }
    for (int column = 0; column < args.columns; ++column) {
      float* out = args.out + (block * kMaxColumns + column) * kBlockRows;
      for (int row = 0; row < kBlockRows; ++row) out[row] = static_cast<float>(sums[column][row]);
    }
  }
}

}  // namespace

void BlockGemmImportedW4Reference(const BlockGemmArgs& args) { Gemm<Codes::kInt4>(args); }
void BlockGemmImportedF4Reference(const BlockGemmArgs& args) { Gemm<Codes::kE2M1>(args); }
void BlockGemmImportedF8Reference(const BlockGemmArgs& args) { Gemm<Codes::kE4M3>(args); }

}  // namespace moert::kernels
