// Quantized weights in the "reference" set. Against float activations a weight is the exact
// scale * u - offset, summed in double precision; against integer ones the product is the defined
// sequence of operations of block_gemm.h, which every set reproduces to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "kernels/cpu/block_gemm.h"
#include "kernels/reference/codes.h"

namespace moert::kernels {
namespace {

int64_t TileBytes(int bits) { return bits * 128; }

struct RowScale {
  float scale;
  float offset;
};

RowScale ScaleOf(const BlockGemmArgs& args, int block, int64_t tile, int row) {
  const int64_t at = tile / args.group_tiles * args.scale_stride + row;
  const bool symmetric = args.offsets[block] == nullptr;
  return {Bf16ToF32(args.scales[block][at]), symmetric ? 0.0f : Bf16ToF32(args.offsets[block][at])};
}

TileScale ScaleOfX(const uint8_t* x, int64_t data_bytes, int64_t tile) {
  TileScale scale;
  std::memcpy(&scale, x + data_bytes + tile * static_cast<int64_t>(sizeof(scale)), sizeof(scale));
  return scale;
}

// fp32 activations in channel order. kF8: their scales follow, and codes are e4m3 bits.
template <int kBits, bool kF8>
void FloatGemm(const BlockGemmArgs& args) {
  const int64_t tiles = args.k16s / kTilePieces;
  for (int block = 0; block < args.blocks; ++block) {
    double sums[kMaxColumns][kBlockRows] = {};
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const TileCodes codes = ReadTile(kBits, args.weights[block] + tile * TileBytes(kBits));
      for (int row = 0; row < kBlockRows; ++row) {
        const RowScale scale = ScaleOf(args, block, tile, row);
        const double middle = args.offsets[block] == nullptr ? 1 << (kBits - 1) : 0;
        double weights[kTileK];
        for (int k = 0; k < kTileK; ++k) {
          const uint8_t u = codes.at[row][k];
          weights[k] = kF8 ? static_cast<double>(scale.scale) * F8E4M3ToF32(u)
                           : static_cast<double>(scale.scale) * (u - middle) - scale.offset;
        }
        for (int column = 0; column < args.columns; ++column) {
          const auto* x = reinterpret_cast<const float*>(args.x[column]) + tile * kTileK;
          const double x_scale =
              kF8 ? ScaleOfX(args.x[column], tiles * kTileK * 4, tile).scale : 1.0f;
          for (int k = 0; k < kTileK; ++k) sums[column][row] += weights[k] * (x_scale * x[k]);
        }
      }
    }
    for (int column = 0; column < args.columns; ++column) {
      float* out = args.out + (block * kMaxColumns + column) * kBlockRows;
      for (int row = 0; row < kBlockRows; ++row) out[row] = static_cast<float>(sums[column][row]);
    }
  }
}

template <int kBits>
void IntGemm(const BlockGemmArgs& args) {
  const int64_t tiles = args.k16s / kTilePieces;
  for (int block = 0; block < args.blocks; ++block) {
    float sums[kMaxColumns][kBlockRows] = {};
    for (int64_t begin = 0; begin < tiles; begin += args.flush_tiles) {
      const int64_t end = std::min(begin + args.flush_tiles, tiles);
      int32_t dots[kMaxColumns][kBlockRows] = {};
      int32_t sum[kMaxColumns] = {};
      for (int64_t tile = begin; tile < end; ++tile) {
        const TileCodes codes = ReadTile(kBits, args.weights[block] + tile * TileBytes(kBits));
        for (int column = 0; column < args.columns; ++column) {
          const auto* packed = reinterpret_cast<const int8_t*>(args.x[column]) + tile * kTileK;
          int8_t x[kTileK];
          for (int k = 0; k < kTileK; ++k) {
            const int b = k % 2 * 2 + k % 16 / 8;
            x[k] = packed[k / 16 * 16 + k % 8 / 2 * 4 + b];
          }
          for (int row = 0; row < kBlockRows; ++row) {
            for (int k = 0; k < kTileK; ++k) dots[column][row] += codes.at[row][k] * x[k];
          }
          sum[column] += ScaleOfX(args.x[column], tiles * kTileK, tile).sum;
        }
      }
      for (int column = 0; column < args.columns; ++column) {
        const float x_scale = ScaleOfX(args.x[column], tiles * kTileK, begin).scale;
        for (int row = 0; row < kBlockRows; ++row) {
          const RowScale scale = ScaleOf(args, block, begin, row);
          float& out = sums[column][row];
          if (args.offsets[block] == nullptr) {
            const int32_t middle = 1 << (kBits - 1);
            out = std::fma(static_cast<float>(dots[column][row] - middle * sum[column]),
                           scale.scale * x_scale, out);
          } else {
            out = std::fma(static_cast<float>(dots[column][row]), scale.scale * x_scale, out);
            out = std::fma(static_cast<float>(-sum[column]), scale.offset * x_scale, out);
          }
        }
      }
    }
    for (int column = 0; column < args.columns; ++column) {
      std::memcpy(args.out + (block * kMaxColumns + column) * kBlockRows, sums[column],
                  sizeof(sums[column]));
    }
  }
}

}  // namespace

void BlockGemmFloatW8Reference(const BlockGemmArgs& args) { FloatGemm<8, false>(args); }
void BlockGemmFloatW4Reference(const BlockGemmArgs& args) { FloatGemm<4, false>(args); }
void BlockGemmFloatW3Reference(const BlockGemmArgs& args) { FloatGemm<3, false>(args); }
void BlockGemmFloatW2Reference(const BlockGemmArgs& args) { FloatGemm<2, false>(args); }
void BlockGemmF8Reference(const BlockGemmArgs& args) { FloatGemm<8, true>(args); }

void BlockGemmIntW8Reference(const BlockGemmArgs& args) { IntGemm<8>(args); }
void BlockGemmIntW4Reference(const BlockGemmArgs& args) { IntGemm<4>(args); }
void BlockGemmIntW3Reference(const BlockGemmArgs& args) { IntGemm<3>(args); }
void BlockGemmIntW2Reference(const BlockGemmArgs& args) { IntGemm<2>(args); }

}  // namespace moert::kernels
