// The memory of the jobs that a device gives to the CPU (kernels/cuda/cache/cpu_mailbox.h), and the
// answers to them. A product on the CPU derives from it.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_ANSWERED_JOBS_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_ANSWERED_JOBS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/aligned_array.h"
#include "base/mutex.h"
#include "exec/cuda/cache/cpu_experts.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/cache/cpu_mailbox.h"
#include "moert/model.h"
#include "store/lent_blocks.h"

namespace moert::cuda {

class AnsweredJobs : public PostedJobs {
 public:
  const CpuJobMemory& memory() const { return memory_; }

  bool Waiting() const override { return PostedJob(*memory_.mailbox) != 0; }
  void Answer() override;

  /// Adds the time of the jobs answered since this was last asked, and their time by the profile.
  void TakeTimes(ServedCount* added);
  /// The first failure since it was last asked; of jobs that nobody else could do.
  absl::Status TakeFailure();
  absl::Status TakeOwedFailure();

 protected:
  /// For calls of the model's layers with up to `tokens` rows.
  absl::Status Init(const MoeModelSpec& model, int64_t tokens);
  /// Most (token, expert) pairs of a job.
  int64_t most_pairs() const { return most_pairs_; }
  /// The rows of the job, in fp32.
  const float* WidenedRows();

 private:
  /// Writes the rows of the job. Adds what its experts take by the profile, and what the reading of
  /// their records took.
  virtual absl::Status Multiply(int64_t* modelled_ns, int64_t* read_ns) = 0;
  void Carve(int64_t tokens, int64_t hidden, Carver* carver);

  struct Times {
    int64_t jobs = 0;
    int64_t modelled_ns = 0;
    int64_t took_ns = 0;
  };

  int64_t most_pairs_ = 0;
  Buffer pinned_;
  CpuJobMemory memory_;
  AlignedArray<float> widened_;
  Mutex mu_;
  Times times_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_), owed_failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_ANSWERED_JOBS_H_
