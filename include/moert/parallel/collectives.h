// Collectives: the communication that ExpertParallel needs. A host may implement it with its own
// library (torch.distributed, MPI, UCX, DeepEP); this library has implementations for the threads
// of one process and for NCCL.
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
/// thread at a time. With a `stream`, memory is device memory, the call is ordered by the stream
/// and returns once it is enqueued. Null: host memory, done on return. After an error the group is
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
  /// send_bytes[r] bytes go to rank r, recv_bytes[r] come from it, both in the order of the ranks.
  /// recv_bytes[r] is what rank r sends to this rank.
  virtual absl::Status AllToAll(const void* send, absl::Span<const int64_t> send_bytes, void* recv,
                                absl::Span<const int64_t> recv_bytes, void* stream) = 0;
  /// Returns when the work enqueued on the stream is done, or with DeadlineExceeded, or with the
  /// error of a rank that failed.
  virtual absl::Status Wait(void* stream, int64_t timeout_ns) = 0;
  /// Declares that this rank has failed: the others' calls fail with `why`, waiting ones at once.
  virtual void Abort(const absl::Status& why) = 0;
};

/// Ranks that are threads of this process, in host memory. If a rank does not join a call within
/// timeout_ns, the call fails on all others with DeadlineExceeded, which names the missing ranks.
/// Sums are made in the order of the ranks.
absl::StatusOr<std::vector<std::unique_ptr<Collectives>>> MakeThreadCollectives(int size,
                                                                                int64_t timeout_ns);

/// Identifies a new NCCL communicator: one rank makes it, and the host sends it to the others.
using NcclId = std::array<char, 128>;
/// Unavailable where libnccl.so.2 cannot be loaded, or is older than 2.14.
absl::StatusOr<NcclId> MakeNcclId();

/// One rank on one device. NCCL is loaded at run time. `communicator` (an ncclComm_t) is borrowed;
/// null: one is made with `id` once all ranks have called. Calls with a stream take device memory;
/// calls without one take host memory, copied to the device and back. A collective that some rank
/// does not join within timeout_ns fails on the others with DeadlineExceeded; a rank that gives up
/// is detected that way. Only Wait watches replays of a captured graph. An error or Abort ends the
/// device's work and aborts the communicator, a borrowed one too (ncclCommAbort frees it: do not
/// destroy it then). Destroy graphs that captured its calls first. If ranks are threads of one
/// process, CUDA_MODULE_LOADING=EAGER must be in the environment before CUDA is used: a kernel that
/// is loaded lazily may wait for a collective that another rank cannot join meanwhile.
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
