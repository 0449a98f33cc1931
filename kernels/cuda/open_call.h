// Calls that are enqueued before it is known what they miss ("open" calls): what a device says to
// the thread that serves misses, and what it is told behind its wait. All through one mailbox in
// mapped host memory, because open calls run one after the other.
#ifndef MOERT_KERNELS_CUDA_OPEN_CALL_H_
#define MOERT_KERNELS_CUDA_OPEN_CALL_H_

#include <cstdint>

#include "kernels/cuda/device_types.h"

struct CUstream_st;

namespace moert::cuda {

/// A piece of device memory that is shown to the host.
struct PublishPiece {
  const uint32_t* from = nullptr;
  uint32_t* to = nullptr;  // mapped
  int32_t words = 0;
};

struct PublishArgs {
  static constexpr int kPieces = 4;
  static constexpr uint32_t kRing = 64;
  PublishPiece piece[kPieces];
  uint32_t* arrived = nullptr;   // device: blocks that are done, 0 between launches
  uint32_t* sequence = nullptr;  // device: publications so far
  uint32_t* calls = nullptr;     // mapped, [kRing]: by number, which call a publication is of
  uint32_t* doorbell = nullptr;  // mapped: the number of the last one, written last
  uint32_t call_id = 0;
};
/// Copies the pieces, then rings. Everything enqueued before has ended by then.
int LaunchPublish(const PublishArgs& args, CUstream_st* stream);

/// Changes of the residency table, as the host leaves them.
struct TableChange {
  ExpertHandle handle;
  int64_t index;
};
struct alignas(8) OpenCounts {
  int32_t changes;
  int32_t cpu_rows;  // see LaunchPlaceOpenRows
};
struct ApplyArgs {
  ExpertHandle* table = nullptr;
  const TableChange* changes = nullptr;  // mapped
  const OpenCounts* counts = nullptr;    // mapped
  int32_t* cpu_rows = nullptr;           // device: receives counts->cpu_rows
  uint32_t* release = nullptr;           // mapped: what the stream waited for; 0 again behind this
};
int LaunchApply(const ApplyArgs& args, CUstream_st* stream);

/// slots[where[r]] = rows[r], cols wide, for r < *count <= most. rows and where are mapped host
/// memory: what the CPU computed.
int LaunchPlaceOpenRows(const float* rows, const int32_t* where, const int32_t* count, int most,
                        int cols, float* slots, int64_t slot_stride, CUstream_st* stream);

/// As LoadRouteKernels.
int LoadOpenCallKernels();

}  // namespace moert::cuda

#endif  // MOERT_KERNELS_CUDA_OPEN_CALL_H_
