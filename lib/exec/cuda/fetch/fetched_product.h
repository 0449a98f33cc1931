// The host's product of opaque records on the CPU: answers the jobs that a device posts in layer
// calls whose other experts the host's own kernels multiply (kernels/cuda/cache/cpu_mailbox.h).
#ifndef MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_
#define MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "exec/cuda/cache/answered_jobs.h"
#include "exec/cuda/memory/device_transfers.h"
#include "moert/source/opaque_source.h"
#include "moert/tools/profile.h"

namespace moert::cuda {

class FetchedProduct final : public AnsweredJobs {
 public:
  struct Parts {
    const ExpertSource* source = nullptr;   // has a product
    const DeviceSource* records = nullptr;  // keeps all of `version`
    int version = 0;
    const HardwareProfile* profile = nullptr;
    ThreadPool* pool = nullptr;
    int64_t max_tokens = 0;  // of a call
  };
  /// All borrowed.
  static absl::StatusOr<std::unique_ptr<FetchedProduct>> Create(const Parts& parts);

  /// Most rows of a job.
  int64_t max_tokens() const { return max_tokens_; }

 private:
  FetchedProduct(const Parts& parts, int64_t max_tokens) : parts_(parts), max_tokens_(max_tokens) {}
  absl::Status Multiply(int64_t* modelled_ns) override;

  const Parts parts_;
  const int64_t max_tokens_;
  std::vector<OpaqueProduct::Expert> experts_;
  std::vector<int32_t> row_of_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_
