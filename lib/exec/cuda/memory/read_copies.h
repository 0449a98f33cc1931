// Copies records to the device that first have to be read from the source: a few at a time, by all
// threads of a pool, through pinned staging buffers.
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
  /// Reads the added records and enqueues their copies. Returns when the last ones have been read.
  /// Not in a capture.
  absl::Status Enqueue(const ExpertSource& source, int version, ThreadPool* pool,
                       cudaStream_t stream);

 private:
  struct Copy {
    ExpertKey key;
    std::byte* to = nullptr;
  };
  struct Staging {
    Buffer buffer;
    cudaEvent_t left = nullptr;  // recorded behind the copy from the buffer
  };
  /// Makes a staging buffer usable: waits for the copy from it, and makes it hold `bytes`.
  static absl::Status Free(Staging* staging, int64_t bytes);

  std::vector<Copy> copies_;
  std::vector<Staging> staging_;
  std::vector<RecordRead> reads_;  // into one half of the staging buffers
  std::vector<absl::Status> done_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_MEMORY_READ_COPIES_H_
