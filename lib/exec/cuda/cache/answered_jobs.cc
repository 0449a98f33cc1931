#include "exec/cuda/cache/answered_jobs.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/exception_status.h"
#include "base/rows.h"
#include "base/status_macros.h"

namespace moert::cuda {

absl::Status AnsweredJobs::Init(const MoeModelSpec& model, int64_t tokens) {
  int64_t hidden = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    hidden = std::max(hidden, layer.hidden);
    most_pairs_ = std::max(most_pairs_, tokens * layer.routing.top_k);
  }
  Carver count;
  Carve(tokens, hidden, &count);
  MOERT_ASSIGN_OR_RETURN(pinned_, Buffer::Pinned(count.used()));
  Carver carver(pinned_.data());
  Carve(tokens, hidden, &carver);
  new (memory_.mailbox) CpuMailbox;
  widened_ = AlignedArray<float>(tokens * hidden);
  return absl::OkStatus();
}

void AnsweredJobs::Carve(int64_t tokens, int64_t hidden, Carver* carver) {
  constexpr int64_t kWidest = sizeof(float);
  memory_.mailbox = carver->Take<CpuMailbox>(1);
  memory_.job = carver->Take<CpuJob>(1);
  memory_.experts = carver->Take<CpuJobExpert>(most_pairs_);
  memory_.slots = carver->Take<int32_t>(most_pairs_);
  memory_.weights = carver->Take<float>(most_pairs_);
  memory_.x = carver->Take<uint8_t>(tokens * hidden * kWidest);
  memory_.rows = carver->Take<float>(most_pairs_ * hidden);
}

void AnsweredJobs::Answer() {
  const uint64_t job = PostedJob(*memory_.mailbox);
  const auto begin = std::chrono::steady_clock::now();
  int64_t modelled_ns = 0, read_ns = 0;
  absl::Status status;
  try {
    status = Multiply(&modelled_ns, &read_ns);
  } catch (...) {  // thrown by the host's product or thread pool, or out of memory
    status = ExceptionStatus("the product on the CPU");
  }
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  {
    const MutexLock lock(&mu_);
    failure_.Update(status);
    if (memory_.job->below > 0) owed_failure_.Update(status);
    if (status.ok()) {
      ++times_.jobs;
      times_.modelled_ns += modelled_ns;
      times_.took_ns += took.count() - read_ns;
    }
  }
  // After this the device may end the step and the host may ask for the failure, so the failure is
  // recorded above.
  AnswerJob(memory_.mailbox, job, status.ok());
}

const float* AnsweredJobs::WidenedRows() {
  const CpuJob& job = *memory_.job;
  WidenRows({memory_.x, static_cast<DType>(job.dtype), job.tokens, job.cols, job.cols},
            widened_.data());
  return widened_.data();
}

void AnsweredJobs::TakeTimes(ServedCount* added) {
  const MutexLock lock(&mu_);
  const Times times = std::exchange(times_, Times{});
  added->cpu_jobs = times.jobs;
  added->cpu_modelled_ns = times.modelled_ns;
  added->cpu_took_ns = times.took_ns;
}

absl::Status AnsweredJobs::TakeFailure() {
  const MutexLock lock(&mu_);
  return std::exchange(failure_, absl::OkStatus());
}

absl::Status AnsweredJobs::TakeOwedFailure() {
  const MutexLock lock(&mu_);
  return std::exchange(owed_failure_, absl::OkStatus());
}

}  // namespace moert::cuda
