// Plain structs shared by the host side of the CUDA backend and its kernels. No CUDA include.
#ifndef MOERT_KERNELS_CUDA_DEVICE_TYPES_H_
#define MOERT_KERNELS_CUDA_DEVICE_TYPES_H_

#include <cstdint>
#include <limits>

#include "rules/host_device.h"

namespace moert::cuda {

/// How the weights of a matrix are stored (docs/reference/layout.md); groups and zeros are in
/// DeviceMatrix. kF8, kW8A8 and kW4A8 are multiplied with quantized activations.
enum class Packing : int32_t {
  kBf16 = 0,
  kW8 = 1,
  kW4 = 2,
  kW3 = 3,
  kW2 = 4,
  kF8 = 5,    // e4m3
  kW8A8 = 6,  // as kW8, int8 products
  kW4A8 = 7,  // as kW4, int8 products; also of int4 activations
  // As published files have them (Scheme::imported).
  kF8Block = 8,      // as kF8, fp32 scales of 128 k
  kMxFp4 = 9,        // e2m1 in the places of kW4, e8m0 scales of 32 k
  kNvFp4 = 10,       // the same, e4m3 scales of 16 k and one fp32 of the matrix
  kW4Group = 11,     // as kW4, bf16 scales of 32, 64 or 128 k, zeros as bytes
  kW4GroupF16 = 12,  // the same, fp16 scales
  kW4Zeros = 13,     // no matrix has it: code for kW4 with scale * zero is compiled for it
  kF8BlockF8 = 14,   // likewise: kF8Block multiplied with e4m3 activations
};
MOERT_HOST_DEVICE constexpr bool IsImported(Packing p) {
  return p >= Packing::kF8Block && p <= Packing::kW4GroupF16;
}

/// The form of a packed row of activations. Integers: one scale a 128 channels or one a row.
enum class OperandForm : int32_t {
  kBf16 = 0,
  kInt8Group = 1,
  kInt8Token = 2,
  kInt4Group = 3,
  kInt4Token = 4,
  kF8 = 5,       // e4m3, each as bf16
  kF8Bytes = 6,  // the same as bytes, for prompts alone
  kF8Group = 7,  // e4m3 times a power of two for every 128 channels, each as bf16, without scales
  kF8GroupBytes = 8,  // the same as bytes with scales, for prompts alone
};
constexpr int kOperandForms = 9;
/// An operand: a form, of the activations as they are or (from kOperandForms on) after the block
/// Hadamard transform.
constexpr int kOperands = 2 * kOperandForms;

/// How often an expert was selected since the engine opened; a layer's own row counts its calls and
/// all their slots. It only grows (and wraps), so a copy made during an update loses nothing: the
/// next copy has what this one missed.
struct alignas(16) SelectionTally {
  uint32_t slots = 0;
  uint32_t calls = 0;
  double mass = 0;  // summed routing weight
};

/// One packed matrix inside a record: what a kernel needs of a MatrixLayout.
struct DeviceMatrix {
  Packing packing = Packing::kBf16;
  int32_t row_blocks = 0;  // of 16 rows
  int32_t k64s = 0;        // pieces of 64 input channels
  int32_t group_k16s = 0;  // pieces of 16 of one scale group; bf16: 0
  int32_t zero_point = 0;  // of symmetric schemes
  int32_t asymmetric = 0;
  int32_t operand = 0;        // 0..kOperands-1
  int32_t k = 0;              // input channels, without padding
  int64_t weight_offset = 0;  // bytes from the start of the record
  int64_t scale_offset = 0;
  int64_t zero_offset = 0;  // of scale * zero (imported: zeros; kNvFp4: the matrix's scale);
                            // scale_offset when symmetric
  int64_t bias_offset = 0;  // of a float a row, padding included; 0: none
};

/// From the biases of gate to those of up, which are a section of their own; bytes.
MOERT_HOST_DEVICE constexpr int SecondBias(int row_blocks) {
  return (row_blocks * 64 + 255) / 256 * 256;
}

/// moert::Activation, without its header.
enum class DeviceFunction : int32_t { kSilu, kGelu, kGeluTanh, kRelu2 };

/// moert::ExpertActivation.
struct DeviceActivation {
  DeviceFunction function = DeviceFunction::kSilu;
  int32_t gated = 1;
  int32_t plain = 1;  // silu or gelu, and nothing besides
  float alpha = 1;
  float inverse_alpha = 1;
  float limit = std::numeric_limits<float>::infinity();
  float up_offset = 0;

  MOERT_HOST_DEVICE constexpr bool PlainSilu() const {
    return function == DeviceFunction::kSilu && plain != 0;
  }
};

/// Bytes of a row block over 64 k.
MOERT_HOST_DEVICE constexpr int K64Bytes(Packing p) {
  switch (p) {
    case Packing::kBf16:
      return 2048;
    case Packing::kW8:
    case Packing::kF8:
    case Packing::kW8A8:
    case Packing::kF8Block:
    case Packing::kF8BlockF8:
      return 1024;
    case Packing::kW4:
    case Packing::kW4A8:
    case Packing::kMxFp4:
    case Packing::kNvFp4:
    case Packing::kW4Group:
    case Packing::kW4GroupF16:
    case Packing::kW4Zeros:
      return 512;
    case Packing::kW3:
      return 384;
    case Packing::kW2:
      return 256;
  }
  return 0;
}

/// Bytes of the scales of a row block in one group.
MOERT_HOST_DEVICE constexpr int BlockScaleBytes(Packing p) {
  if (p == Packing::kF8Block || p == Packing::kF8BlockF8) return 64;
  return p == Packing::kMxFp4 || p == Packing::kNvFp4 ? 16 : 32;
}

/// Packed activation rows: the channels, padded with zeros to a multiple of 128, then one float of
/// scale for every 128 of them (all alike where a row has one). Forms of one byte a channel use
/// half of the first part.
MOERT_HOST_DEVICE constexpr int64_t OperandScales(int64_t channels) {
  return (channels + 127) / 128 * 256;
}
/// Bytes of a row: an odd multiple of 64, so that rows that are read together meet in few banks.
MOERT_HOST_DEVICE constexpr int64_t OperandBytes(int64_t channels) {
  const int64_t bytes = OperandScales(channels) + (channels + 127) / 128 * 4;
  return (bytes + 63) / 128 * 128 + 64;
}

/// The format of a record. Gate and up have one shape and packing.
struct DeviceFormat {
  DeviceMatrix gate, up, down;
};

/// A row of the residency table: where a complete record of an expert is, and in which format.
struct ExpertHandle {
  const uint8_t* record = nullptr;  // null: absent
  int32_t format = 0;               // index into the formats
  int32_t version = -1;             // of the served ones, 0 has most bits
};

/// One product's matrix of a tile, resolved: everything that a launch needs, in one read.
struct alignas(16) TileMatrix {
  const uint8_t* weights;  // of row block 0 (gate, or down)
  const uint8_t* scales;
  int32_t second_weights;  // from an item's first row block to its second, bytes
  int32_t second_scales;
  int32_t zero_distance;  // from scales to what DeviceMatrix::zero_offset says; 0: symmetric
  int32_t items;          // pieces of work, see group_gemm.h
  int32_t row_blocks;
  int32_t k64s;
  int32_t group_k16s;  // 0: no scales
  int32_t zero_point;
  Packing packing;
  int32_t operand;
  int32_t k;
  int32_t bias;  // from weights to the biases, bytes; 0: none. For up: SecondBias behind
};

/// Tokens of one expert that are multiplied together, at most kTileTokens.
struct Tile {
  TileMatrix matrix[2];  // gate and up, down
  const int32_t* slots;  // [count] slots of the tokens, see route.h
  int32_t count;
  int32_t unused;
};
constexpr int kTileTokens = 16;  // more would not fit the kernels' registers

/// A place in the work of a wave, whose tiles follow one another.
struct Position {
  int32_t tile;
  int32_t item;
};

/// Tiles of a wave and how they are shared out. Arrays in device memory.
struct TileTable {
  Tile* tiles;
  /// [kMaxShares + 1]: where each share begins; the next one's start is its end.
  Position* starts[2];
  int32_t* ready;   // [tiles]: parts of gate and up that are done; zeroed with the tiles
  int32_t* ticket;  // [2]: shares taken, per product; likewise
};
constexpr int kMaxShares = 1024;

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_DEVICE_TYPES_H_
