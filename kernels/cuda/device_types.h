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

/// The format of a record. Gate and up have one shape and packing.
struct DeviceFormat {
  DeviceMatrix gate, up, down;
};

/// A row of the residency table: where a complete record of an expert is, and in which format.
struct ExpertHandle {
  const uint8_t* record = nullptr;  // null: absent
  int64_t format = 0;               // index into the formats
};

/// Tokens of one expert that are multiplied together, at most kTileTokens.
struct Tile {
  const uint8_t* record;
  const int32_t* slots;  // [count] slots of the tokens, see SlotMap
  int32_t format;
  int32_t count;
};
constexpr int kTileTokens = 16;  // more would not fit the kernels' registers

/// Tiles of a wave and the work in them, one entry a tile. Arrays in device memory.
struct TileTable {
  Tile* tiles;
  int64_t* cost[2];   // per product (gate+up, down): cost of all tiles before this one
  int32_t* tasks[2];  // tasks of this tile
  int32_t* unit[2];   // cost of one task of this tile
  int32_t* num_tiles;
  int64_t* total[2];
};

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_DEVICE_TYPES_H_
