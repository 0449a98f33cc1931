// The host's product of opaque records on the CPU: answers the jobs that a device posts in layer
// calls whose other experts the host's own kernels multiply (kernels/cuda/cache/cpu_mailbox.h).
#ifndef MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_
#define MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/aligned_array.h"
#include "base/mutex.h"
#include "exec/cuda/cache/cpu_experts.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/memory/device_transfers.h"
#include "kernels/cuda/cache/cpu_mailbox.h"
#include "moert/opaque_source.h"
#include "moert/profile.h"

namespace moert::cuda {

class FetchedProduct final : public PostedJobs {
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

  const CpuJobMemory& memory() const { return memory_; }
  /// Most rows of a job.
  int64_t max_tokens() const { return max_tokens_; }

  // State of the thread that answers.

  bool Waiting() const override { return PostedJob(*memory_.mailbox) != 0; }
  void Answer() override;

  /// The time of the jobs answered since this was last asked, and their time by the profile.
  struct Times {
    int64_t jobs = 0;
    int64_t modelled_ns = 0;
    int64_t took_ns = 0;
  };
  Times TakeTimes();
  /// The first failure since it was last asked.
  absl::Status TakeFailure();

 private:
  FetchedProduct(const Parts& parts, int64_t max_tokens) : parts_(parts), max_tokens_(max_tokens) {}
  void Carve(int64_t pairs, int64_t hidden, Carver* carver);
  absl::Status Multiply(int64_t* modelled_ns);

  const Parts parts_;
  const int64_t max_tokens_;
  Buffer pinned_;
  CpuJobMemory memory_;
  AlignedArray<float> widened_;
  std::vector<OpaqueProduct::Expert> experts_;
  std::vector<int32_t> row_of_;
  Mutex mu_;
  Times times_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_FETCH_FETCHED_PRODUCT_H_
