// Answers, with the source's product of opaque records on the CPU, the jobs that a device posts in
// layer calls whose other experts the host's kernels multiply (kernels/cuda/cache/cpu_mailbox.h).
#ifndef MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_
#define MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/cuda/cache/answered_jobs.h"
#include "exec/cuda/cache/job_records.h"
#include "exec/cuda/memory/device_transfers.h"
#include "moert/source/opaque_source.h"
#include "moert/tools/profile.h"

namespace moert::cuda {

class FetchedProduct final : public AnsweredJobs {
 public:
  struct Parts {
    const ExpertSource* source = nullptr;  // has a product
    DeviceSource* records = nullptr;       // keeps all records of `version`, or moves them by use
    int version = 0;
    const HardwareProfile* profile = nullptr;
    ThreadPool* pool = nullptr;
    int64_t max_tokens = 0;  // the most tokens of a call
  };
  /// All borrowed.
  static absl::StatusOr<std::unique_ptr<FetchedProduct>> Create(const Parts& parts);

  /// The most rows of a job.
  int64_t max_tokens() const { return max_tokens_; }
  bool Owed() const override { return parts_.records->moves(); }
  JobRecords* records() { return &records_; }

 private:
  FetchedProduct(const Parts& parts, int64_t max_tokens)
      : parts_(parts),
        max_tokens_(max_tokens),
        records_(parts.records, parts.version, parts.pool) {}
  absl::Status Multiply(int64_t* modelled_ns, int64_t* read_ns) override;
  /// Computes the job, whose records are found a few at a time.
  absl::Status MultiplyFound(const float* x, int64_t* modelled_ns);
  /// Fills in the experts of the job from `first` on whose records were found. Returns the number
  /// of their pairs.
  int64_t FillExperts(size_t first, int64_t* modelled_ns);

  const Parts parts_;
  const int64_t max_tokens_;
  JobRecords records_;
  std::vector<const std::byte*> found_;
  std::vector<OpaqueProduct::Expert> experts_;
  std::vector<int32_t> row_of_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_
