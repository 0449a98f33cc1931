// Multiplies, with the library's CPU kernels, the experts that a device gives to the CPU in
// captured calls.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_SERVED_CPU_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_SERVED_CPU_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/aligned_array.h"
#include "exec/cuda/cache/answered_jobs.h"
#include "exec/cuda/cache/job_records.h"
#include "exec/cuda/memory/device_transfers.h"
#include "moert/mixed_group_gemm.h"
#include "moert/model.h"
#include "moert/thread_pool.h"
#include "moert/tools/profile.h"

namespace moert::cuda {

class ServedCpu final : public AnsweredJobs {
 public:
  struct Parts {
    const MoeModelSpec* model = nullptr;
    DeviceSource* records = nullptr;  // keeps all records of `version` pinned, or moves them by use
    int version = 0;
    MixedGroupGemm* gemm = nullptr;  // not used elsewhere while a job is answered
    ThreadPool* pool = nullptr;      // likewise
    const HardwareProfile* profile = nullptr;
    int64_t max_tokens = 0;  // the most tokens of a call
  };
  /// All borrowed.
  static absl::StatusOr<std::unique_ptr<ServedCpu>> Create(const Parts& parts);

  bool Waiting() const override;
  bool Owed() const override { return parts_.records->moves(); }
  JobRecords* records() { return &records_; }

  /// For tests: stops or resumes the answering of jobs.
  static void Pause(bool paused);

 private:
  explicit ServedCpu(const Parts& parts)
      : parts_(parts), records_(parts.records, parts.version, parts.pool) {}
  absl::Status Multiply(int64_t* modelled_ns, int64_t* read_ns) override;
  /// The same for problems_, whose records are found a few at a time.
  absl::Status MultiplyFound(const float* x, int64_t rows);
  /// The input rows that the job's pairs read. *rows: how many.
  const float* Inputs(int64_t* rows);
  /// Fills problems_ with the job's experts and their pairs, without records. Returns the time that
  /// they should take by the profile.
  int64_t FillProblems();

  const Parts parts_;
  JobRecords records_;
  std::vector<std::vector<int64_t>> expert_ns_;  // [layers][pairs], times by the profile
  AlignedArray<float> weighted_;  // [pairs, hidden], for layers whose weights multiply inputs
  std::vector<int32_t> tokens_of_, out_rows_;
  std::vector<ExpertProblem> problems_;
  std::vector<const std::byte*> found_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_SERVED_CPU_H_
