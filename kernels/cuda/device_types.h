// Plain structs shared by the host side of the CUDA backend and its kernels. No CUDA include.
#ifndef MOERT_KERNELS_CUDA_DEVICE_TYPES_H_
#define MOERT_KERNELS_CUDA_DEVICE_TYPES_H_

#include <cstdint>

#ifdef __CUDACC__
#define MOERT_HOST_DEVICE __host__ __device__
#else
#define MOERT_HOST_DEVICE
#endif

namespace moert::cuda {

/// How the weights of a matrix are stored (docs/layout.md); groups and zeros are in DeviceMatrix.
enum class Packing : int32_t { kBf16 = 0, kW8 = 1, kW4 = 2, kW3 = 3, kW2 = 4 };

/// One packed matrix inside a record: what a kernel needs of a MatrixLayout.
struct DeviceMatrix {
  Packing packing = Packing::kBf16;
  int32_t row_blocks = 0;  // of 16 rows
  int32_t k64s = 0;        // pieces of 64 input channels
  int32_t group_k64s = 0;  // pieces of one scale group; bf16: 0
  int32_t zero_point = 0;  // of symmetric schemes
  int32_t asymmetric = 0;
  int64_t weight_offset = 0;  // bytes from the start of the record
  int64_t scale_offset = 0;
  int64_t zero_offset = 0;  // of scale * zero; scale_offset when symmetric
};

/// Bytes of a row block over 64 k.
MOERT_HOST_DEVICE constexpr int K64Bytes(Packing p) {
  return p == Packing::kBf16 ? 2048
         : p == Packing::kW8 ? 1024
         : p == Packing::kW4 ? 512
         : p == Packing::kW3 ? 384
                             : 256;
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

/// One product's matrix of a tile, resolved: what a launch needs, at hand in one read.
struct TileMatrix {
  const uint8_t* weights;  // of row block 0 (gate, or down)
  const uint8_t* scales;
  int32_t second_weights;  // from an item's first row block to its second, bytes
  int32_t second_scales;
  int32_t zero_distance;  // from scales to scale * zero; 0: symmetric
  int32_t items;          // pieces of work, see group_gemm.h
  int32_t row_blocks;
  int32_t k64s;
  int32_t group_k64s;  // 0: no scales
  int32_t zero_point;
  Packing packing;
  int32_t unused;
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
  int64_t* cost[2];     // per product: cost of all tiles up to and with this one
  Position* starts[2];  // [kMaxCtas + 1]: where each CTA begins; the next one's start is its end
};
constexpr int kMaxCtas = 512;

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_DEVICE_TYPES_H_
