// Exchange of rows between ranks: records of a row and its routing, sums of the ranks' parts, and
// the choice of the ids that a rank computes.
#ifndef MOERT_KERNELS_CUDA_ROUTE_EXCHANGE_ROWS_H_
#define MOERT_KERNELS_CUDA_ROUTE_EXCHANGE_ROWS_H_

#include <cstdint>

#include "kernels/cuda/route/rows.h"

namespace moert::cuda {

/// Records of `stride` bytes, a multiple of 16: a row at 0, its ids at ids_at, its weights behind
/// the ids.
struct RowRecords {
  uint8_t* data = nullptr;
  int64_t stride = 0;
  int64_t ids_at = 0;
  int32_t rows = 0;
  int32_t top_k = 0;
};

/// x, ids ([rows, top_k]) and weights into records.
int LaunchPackRecords(const DeviceRows& x, const int32_t* ids, const float* weights,
                      const RowRecords& records, CUstream_st* stream);

/// ids and weights out of records.
int LaunchTakeRouting(const RowRecords& records, int32_t* ids, float* weights, CUstream_st* stream);

struct AddPartsArgs {
  const void* parts = nullptr;  // [ranks][rows, cols]
  bool narrow = false;          // bf16; else floats
  int32_t ranks = 1;
  DeviceRows out;  // its data is written
};
/// out = the sum over the ranks, in their order, in fp32.
int LaunchAddParts(const AddPartsArgs& args, CUstream_st* stream);

struct KeepOwnArgs {
  const int32_t* ids = nullptr;          // [pairs]: [rows, top_k]
  const int32_t* shares = nullptr;       // [experts]: of << 16 | index, see OwnerShare
  unsigned long long* counts = nullptr;  // [experts]
  int32_t* kept = nullptr;               // [pairs]
  int32_t pairs = 0;
  int32_t top_k = 1;
  int32_t experts = 0;
};
/// kept[i] = ids[i] if this rank computes row i / top_k of that expert, else -1. Adds the kept
/// pairs of each expert to `counts`.
int LaunchKeepOwn(const KeepOwnArgs& args, CUstream_st* stream);

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_ROUTE_EXCHANGE_ROWS_H_
