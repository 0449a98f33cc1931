// The records of a job for the CPU, in host memory. Some are kept in pinned memory; the others are
// read from the source for the job, a few at a time.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_JOB_RECORDS_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_JOB_RECORDS_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_transfers.h"
#include "kernels/cuda/cache/cpu_mailbox.h"
#include "moert/thread_pool.h"
#include "source/read_records.h"

namespace moert::cuda {

/// Used by the thread that answers jobs. Any thread may call read_ns and TakeReadBytes.
class JobRecords {
 public:
  /// All borrowed.
  JobRecords(DeviceSource* records, int version, ThreadPool* pool)
      : records_(records), version_(version), pool_(pool) {}

  /// FailedPrecondition if some record is not kept in pinned memory and none may be read.
  absl::Status Check() const;

  /// Finds the records of the first of `experts`: as many as there is room for, at least one.
  /// Records that are not kept are read, or used where the source has them in memory. *found: their
  /// addresses, valid until the next call; null: the record is in parts (ExpertSource::HostPart).
  absl::Status Find(int layer, absl::Span<const CpuJobExpert> experts,
                    std::vector<const std::byte*>* found);
  /// Ends a job, whose records are no longer read. Returns the time that reading them took.
  int64_t EndJob();

  /// The running mean of the time to read a record that is not kept.
  int64_t read_ns() const { return read_ns_.load(std::memory_order_relaxed); }
  /// Bytes read since the last call.
  int64_t TakeReadBytes() { return bytes_.exchange(0, std::memory_order_relaxed); }

 private:
  /// The memory to read a record into: `place` if given, else scratch; null: there is no room now.
  std::byte* Room(ExpertKey key, std::byte* place);
  absl::Status ReadAll();
  void Measure(int64_t took_ns);

  DeviceSource* const records_;
  const int version_;
  ThreadPool* const pool_;
  std::vector<Buffer> scratch_;  // pageable memory for records without a pinned place
  size_t scratch_used_ = 0;
  std::vector<RecordRead> reads_;
  int64_t in_place_ = 0;  // further records, multiplied where the source has them
  std::vector<absl::Status> done_;
  int64_t job_ns_ = 0;
  std::atomic<int64_t> read_ns_{0}, bytes_{0};
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_JOB_RECORDS_H_
