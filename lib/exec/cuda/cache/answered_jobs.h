// AnsweredJobs: the memory of the jobs that a device posts for the CPU
// (kernels/cuda/cache/cpu_mailbox.h), and the code that answers them. A class that multiplies on
// the CPU derives from it.
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

  /// Adds the jobs answered since the last call: their count, measured time and time by the
  /// profile.
  void TakeTimes(ServedCount* added);
  /// The first failure of a job since the last call.
  absl::Status TakeFailure();
  /// The same for jobs that the device cannot take back, because only the CPU can compute them.
  absl::Status TakeOwedFailure();

 protected:
  /// For calls of the model's layers with up to `tokens` rows.
  absl::Status Init(const MoeModelSpec& model, int64_t tokens);
  /// The most (token, expert) pairs of a job.
  int64_t most_pairs() const { return most_pairs_; }
  /// The job's input rows, converted to fp32.
  const float* WidenedRows();

 private:
  /// Computes the job and writes its output rows. Adds the time that its experts should take by the
  /// profile, and the time spent reading their records.
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
