// Collectives: what ExpertParallel needs of a communicator, five functions. A host puts its own
// engine behind them (torch.distributed, MPI, UCX, DeepEP); the library has threads of one process,
// and NCCL.
#ifndef MOERT_PARALLEL_COLLECTIVES_H_
#define MOERT_PARALLEL_COLLECTIVES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace moert {

/// One rank's side of a group. All ranks make the same calls in the same order, each from one
/// thread at a time. `stream` orders a call on a device; then memory is device memory and a call
/// returns when it is enqueued. Null: host memory, done on return. After an error the group is
/// unusable on every rank.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// data[i] becomes the sum over the ranks, on each of them the same bits.
  virtual absl::Status AllReduce(float* data, int64_t count, void* stream) = 0;
  /// all: [size(), bytes], by rank. `mine` may lie in `all`, at its place.
  virtual absl::Status AllGather(const void* mine, int64_t bytes, void* all, void* stream) = 0;
  /// send_bytes[r] bytes go to rank r, those of a lower rank before those of a higher one; likewise
  /// received. The bytes that r sends here are received from r.
  virtual absl::Status AllToAll(const void* send, absl::Span<const int64_t> send_bytes, void* recv,
                                absl::Span<const int64_t> recv_bytes, void* stream) = 0;
  /// Returns when what was enqueued on the stream is done, or with DeadlineExceeded, or with the
  /// error of a rank that failed.
  virtual absl::Status Wait(void* stream, int64_t timeout_ns) = 0;
  /// This rank gives up: the others' calls fail with `why`, those that wait at once.
  virtual void Abort(const absl::Status& why) = 0;
};

/// Ranks that are threads of this process, in host memory. A call in which some rank does not
/// arrive within timeout_ns fails on all others with DeadlineExceeded, which names the missing
/// ones. Sums are made in the order of the ranks.
absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeThreadCollectives(int size,
                                                                                int64_t timeout_ns);

/// The common part of ranks of a new NCCL communicator: made by one, sent to the others by the
/// host.
using NcclId = std::array<char, 128>;
/// Unavailable where libnccl.so.2 cannot be loaded, or is older than 2.14.
absl::StatusOr<NcclId> MakeNcclId();

/// One rank on one device. NCCL is loaded at run time. `communicator` (an ncclComm_t) is borrowed;
/// null: one is made with `id` when all ranks have come. Calls with a stream take memory of the
/// device; those without one take host memory, copied there and back. A collective that some rank
/// does not come to within timeout_ns fails on the others with DeadlineExceeded; a rank that gives
/// up is found out that way. Replays of a captured graph are watched by Wait alone. An error or
/// Abort ends what the device runs and aborts the communicator, a borrowed one too (ncclCommAbort
/// frees it: do not destroy it then). Graphs that captured its calls are destroyed first. Where
/// ranks are threads of one process, CUDA_MODULE_LOADING=EAGER has to be in the environment before
/// CUDA is used: a kernel that is loaded late may wait for a collective that another rank cannot
/// come to meanwhile.
struct NcclOptions {
  int rank = 0;
  int size = 1;
  int device = -1;  // its ordinal; -1: the calling thread's current one
  int64_t timeout_ns = int64_t{60} * 1'000'000'000;
  void* communicator = nullptr;  // then its device counts
  NcclId id{};
};
absl::StatusOr<std::unique_ptr<Collectives>> MakeNcclCollectives(const NcclOptions& options);

}  // namespace moert

#endif  // MOERT_PARALLEL_COLLECTIVES_H_
