// Experts that the CPU multiplies beside a device (importance paper Sec. 5.4): a dedicated thread
// runs the CPU backend's MixedGroupGemm over records in pinned host memory while the caller starts
// transfers and enqueues the device's products.
//
// The rows of x are copied to the host before the caller waits for the routing. The outputs lie in
// mapped host memory, and a kernel copies them into their slots. The sum over slots treats rows of
// the CPU and of the device alike.
#ifndef MOERT_LIB_EXEC_CUDA_CACHE_CPU_EXPERTS_H_
#define MOERT_LIB_EXEC_CUDA_CACHE_CPU_EXPERTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/aligned_array.h"
#include "base/mutex.h"
#include "exec/cuda/cuda_api.h"
#include "moert/mixed_group_gemm.h"
#include "moert/model.h"
#include "moert/router.h"
#include "moert/tensor.h"

namespace moert::cuda {

/// An expert and its record in host memory.
struct HostExpert {
  int32_t expert = 0;
  const std::byte* record = nullptr;
  const RecordLayout* layout = nullptr;
};

/// Jobs that the device itself posts for the CPU, in captured calls.
class PostedJobs {
 public:
  virtual ~PostedJobs() = default;
  /// Whether a job is waiting for an answer.
  virtual bool Waiting() const = 0;
  virtual void Answer() = 0;
  /// Whether the device may wait for jobs that only the CPU can do. Then the thread never stops
  /// polling for jobs.
  virtual bool Owed() const { return false; }
};

/// One caller at a time: BringRows, then TakeRows or SetRows, Begin, Join.
class CpuExperts {
 public:
  /// `gemm` is borrowed. `spin`: how long the thread polls for the next job, and Join for the end
  /// of a job, before they sleep. `cpus`: the thread is pinned to the first one; empty: not pinned.
  static absl::StatusOr<std::unique_ptr<CpuExperts>> Create(const MoeModelSpec& model,
                                                            MixedGroupGemm* gemm,
                                                            int64_t max_tokens,
                                                            std::chrono::microseconds spin,
                                                            absl::Span<const int> cpus);
  ~CpuExperts();

  /// The most rows of a call.
  int64_t max_tokens() const { return max_tokens_; }

  /// Enqueues the copy of a call's rows to the host.
  absl::Status BringRows(const MatrixView& hidden, cudaStream_t stream) const;
  /// Tells that the rows copied by BringRows have arrived.
  void TakeRows(const MatrixView& hidden);
  /// Uses rows that are in host memory already: fp32, contiguous, valid until Join.
  void SetRows(const float* rows, int64_t tokens, int64_t hidden);

  /// Starts multiplying the rows last taken or set. The routing is read during this call only. No
  /// other multiplication may be in progress.
  void Begin(const RoutingResult& routing, absl::Span<const HostExpert> experts,
             const MoeLayerSpec& layer);
  bool busy() const { return busy_; }
  /// Waits for the products; *took_ns: how long they took. rows() and slots() are then valid until
  /// the next Begin, before which the caller must have waited for the kernel that reads them.
  absl::Status Join(int64_t* took_ns);

  /// From now on the thread also answers the jobs of `posted`, which is borrowed and must outlive
  /// this object.
  void Attach(PostedJobs* posted);
  /// Wakes the thread because a step begins whose calls may post jobs. While none comes, the thread
  /// polls at intervals for some time.
  void Watch();

  /// The outputs, [num_rows(), hidden] in mapped host memory, and the slot of each row.
  const float* rows() const { return reinterpret_cast<const float*>(out_memory_.data()); }
  const int32_t* slots() const { return reinterpret_cast<const int32_t*>(slot_memory_.data()); }
  int num_rows() const { return static_cast<int>(out_rows_.size()); }
  /// Drops the outputs once they have been handed on: num_rows() is 0 until the next Begin.
  void Forget() { out_rows_.clear(); }

 private:
  CpuExperts(MixedGroupGemm* gemm, std::chrono::microseconds spin) : gemm_(gemm), spin_(spin) {}
  void Serve();
  /// Whether the caller began a job that is not done.
  bool Begun() const {
    return posted_.load(std::memory_order_acquire) != done_.load(std::memory_order_relaxed);
  }
  /// Whether the device posted a job that is not answered.
  bool Posted() const {
    const PostedJobs* jobs = jobs_.load(std::memory_order_acquire);
    return jobs != nullptr && jobs->Waiting();
  }
  /// Sleeps until there may be something to do. False: the thread has to end.
  bool Rest();
  void Multiply();

  MixedGroupGemm* const gemm_;
  const std::chrono::microseconds spin_;
  int64_t max_tokens_ = 0;
  Buffer in_memory_, out_memory_, slot_memory_;
  AlignedArray<float> widened_;
  MatrixView arriving_;       // rows in pinned memory, in the host's dtype
  const float* x_ = nullptr;  // rows in fp32; null: still to be converted from arriving_
  int64_t tokens_ = 0, hidden_ = 0;
  std::vector<int32_t> tokens_of_, out_rows_;
  std::vector<float> weights_of_;  // for layers whose weights multiply the inputs
  AlignedArray<float> weighted_;   // [pairs, hidden], for such layers
  std::vector<ExpertProblem> problems_;
  bool busy_ = false;

  std::atomic<int64_t> posted_{0}, done_{0};  // numbers of jobs
  absl::Status status_;                       // of the last job; like took_ns_, read after done_
  int64_t took_ns_ = 0;
  Mutex mu_;
  CondVar work_, finished_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool watched_ ABSL_GUARDED_BY(mu_) = false;  // Watch was called since the thread last slept
  std::atomic<PostedJobs*> jobs_{nullptr};
  std::thread thread_;
};

}  // namespace moert::cuda

#endif  // MOERT_LIB_EXEC_CUDA_CACHE_CPU_EXPERTS_H_
