// Records that are read from the source now and copied to the device: some at a time, by all
// threads of a pool, through pinned memory of their own.
#ifndef MOERT_LIB_EXEC_CUDA_MEMORY_READ_COPIES_H_
#define MOERT_LIB_EXEC_CUDA_MEMORY_READ_COPIES_H_

#include <vector>

#include "absl/status/status.h"
#include "exec/cuda/cuda_api.h"
#include "moert/policy.h"
#include "moert/source/expert_source.h"
#include "moert/thread_pool.h"
#include "source/read_records.h"

namespace moert::cuda {

/// One caller at a time, with the device current.
class ReadCopies {
 public:
  ReadCopies() = default;
  ~ReadCopies();
  ReadCopies(const ReadCopies&) = delete;
  ReadCopies& operator=(const ReadCopies&) = delete;

  void Add(ExpertKey key, std::byte* to) { copies_.push_back({key, to}); }
  bool empty() const { return copies_.empty(); }
  void Clear() { copies_.clear(); }
  /// Enqueues them. Waits until the last ones are read. Not in a capture.
  absl::Status Enqueue(const ExpertSource& source, int version, ThreadPool* pool,
                       cudaStream_t stream);

 private:
  struct Copy {
    ExpertKey key;
    std::byte* to = nullptr;
  };
  struct Staging {
    Buffer buffer;
    cudaEvent_t left = nullptr;  // behind the copy from it
  };
  /// Its memory holds so many bytes, and nobody reads it.
  static absl::Status Free(Staging* staging, int64_t bytes);

  std::vector<Copy> copies_;
  std::vector<Staging> staging_;
  std::vector<RecordRead> reads_;  // of a half
  std::vector<absl::Status> done_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_READ_COPIES_H_
