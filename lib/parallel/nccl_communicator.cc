#include "parallel/nccl_communicator.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"

namespace moert {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// Pauses between two polls: yields at first, sleeps later.
void Pause(SteadyClock::time_point since) {
  if (SteadyClock::now() - since < std::chrono::milliseconds(5)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

NcclCommunicator::~NcclCommunicator() {
  {
    const MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  if (watch_.joinable()) watch_.join();
  {
    const NcclScope scope(api_, context_);
    const MutexLock lock(&mu_);
    if (comm_ != nullptr && o_.communicator == nullptr) {
      const absl::Status settled = Settle("finalize", api_->CommFinalize(comm_));
      if (settled.ok()) api_->CommDestroy(comm_);  // otherwise it was aborted, which frees it
    }
    for (const Pending& pending : pending_) api_->EventDestroy(pending.event);
    for (CudaEvent event : events_) api_->EventDestroy(event);
  }
  api_->PrimaryCtxRelease(device_);
}

absl::Status NcclCommunicator::Init() {
  {
    const NcclScope scope(api_, context_);
    const MutexLock lock(&mu_);
    MOERT_RETURN_IF_ERROR(o_.communicator == nullptr ? Connect() : Borrow());
  }
  watch_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Connect() {
  NcclUniqueId id{};
  std::copy(o_.id.begin(), o_.id.end(), id.internal);
  NcclConfig config;
  const NcclResult result = api_->CommInitRankConfig(&comm_, o_.size, id, o_.rank, &config);
  if (comm_ == nullptr) {
    return Unavailable("NCCL: a communicator of {} ranks: {}", o_.size,
                       api_->GetErrorString(result));
  }
  return Settle("a communicator", result);
}

absl::Status NcclCommunicator::Borrow() {
  int size = 0, rank = 0;
  if (api_->CommCount(o_.communicator, &size) != kNcclSuccess ||
      api_->CommUserRank(o_.communicator, &rank) != kNcclSuccess) {
    return absl::InvalidArgumentError("NCCL: communicator: cannot be asked for its size");
  }
  if (size != o_.size || rank != o_.rank) {
    return InvalidArgument(
        "NCCL: communicator: it has rank {} of {}, the options say rank {} of {}", rank, size,
        o_.rank, o_.size);
  }
  comm_ = o_.communicator;
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Enqueue(const char* what, CudaStream stream,
                                       absl::FunctionRef<NcclResult(NcclComm)> call) {
  const NcclScope scope(api_, context_);
  const MutexLock lock(&mu_);
  MOERT_RETURN_IF_ERROR(failure_);
  MOERT_RETURN_IF_ERROR(Settle(what, call(comm_)));
  return Note(what, stream);
}

absl::Status NcclCommunicator::Settle(const char* what, NcclResult result) {
  const auto begin = SteadyClock::now();
  while (result == kNcclInProgress) {
    if (SteadyClock::now() - begin > std::chrono::nanoseconds(o_.timeout_ns)) {
      return GiveUp(absl::StatusCode::kDeadlineExceeded, "{}: some rank did not come within {} ms",
                    what, o_.timeout_ns / 1'000'000);
    }
    Pause(begin);
    NcclResult state = kNcclSuccess;
    const NcclResult asked = api_->CommGetAsyncError(comm_, &state);
    result = asked == kNcclSuccess ? state : asked;
  }
  return result == kNcclSuccess ? absl::OkStatus() : Fail(what, result);
}

/// Records an event behind an enqueued call, for Watch. A captured call does not run now; Wait
/// watches its replays.
absl::Status NcclCommunicator::Note(const char* what, CudaStream stream) {
  int capturing = 0;
  if (api_->StreamIsCapturing(stream, &capturing) == kCudaSuccess && capturing != 0) {
    return absl::OkStatus();
  }
  if (events_.empty()) {
    events_.reserve(pending_.size() + 1);  // so that returning events never allocates
    CudaEvent event = nullptr;
    const int error = api_->EventCreate(&event, kCudaEventNoTiming);
    if (error != kCudaSuccess) {
      return GiveUp(absl::StatusCode::kInternal, "{}: CUDA error {}", what, error);
    }
    events_.push_back(event);
  }
  CudaEvent event = events_.back();
  pending_.push_back({what, event, SteadyClock::now() + std::chrono::nanoseconds(o_.timeout_ns)});
  events_.pop_back();
  if (const int error = api_->EventRecord(event, stream); error != kCudaSuccess) {
    return GiveUp(absl::StatusCode::kInternal, "{}: CUDA error {}", what, error);
  }
  if (pending_.size() == 1) changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Wait(CudaStream stream, int64_t timeout_ns) {
  const NcclScope scope(api_, context_);
  const auto begin = SteadyClock::now();
  while (true) {
    {
      const MutexLock lock(&mu_);
      MOERT_RETURN_IF_ERROR(failure_);
      MOERT_RETURN_IF_ERROR(AsyncError());
      const int query = api_->StreamQuery(stream);
      if (query == kCudaSuccess) return absl::OkStatus();
      if (query != kCudaNotReady) {
        return GiveUp(absl::StatusCode::kInternal, "the stream failed: CUDA error {}", query);
      }
      if (SteadyClock::now() - begin > std::chrono::nanoseconds(timeout_ns)) {
        return GiveUp(absl::StatusCode::kDeadlineExceeded,
                      "the stream was not done within {} ms: some rank did not come",
                      timeout_ns / 1'000'000);
      }
    }
    Pause(begin);
  }
}

void NcclCommunicator::AbortLocked(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = why.ok() ? absl::Status(absl::StatusCode::kAborted, "") : why;
  if (comm_ != nullptr) api_->CommAbort(comm_);
  comm_ = nullptr;  // CommAbort has freed it
}

absl::Status NcclCommunicator::Fail(const char* what, NcclResult result) {
  const char* const more = api_->GetLastError(comm_);
  return GiveUp(absl::StatusCode::kUnavailable, "{}: {} {}", what, api_->GetErrorString(result),
                more == nullptr ? "" : more);
}

absl::Status NcclCommunicator::AsyncError() {
  NcclResult state = kNcclSuccess;
  NcclResult asked = api_->CommGetAsyncError(comm_, &state);
  if (asked == kNcclSuccess) asked = state;
  if (asked == kNcclSuccess || asked == kNcclInProgress) return absl::OkStatus();
  return Fail("a call", asked);
}

void NcclCommunicator::Watch() {
  const NcclScope scope(api_, context_);
  const MutexLock lock(&mu_);
  while (!stop_) {
    if (pending_.empty() || !failure_.ok()) {
      changed_.Wait(&mu_);
      continue;
    }
    try {
      CheckPending();
    } catch (...) {  // no memory for the message
      AbortLocked(absl::Status(absl::StatusCode::kResourceExhausted, ""));
    }
    changed_.WaitFor(&mu_, std::chrono::milliseconds(5));
  }
}

void NcclCommunicator::CheckPending() {
  while (!pending_.empty()) {
    const Pending& oldest = pending_.front();
    const int query = api_->EventQuery(oldest.event);
    if (query == kCudaNotReady) break;
    if (query != kCudaSuccess) {
      (void)GiveUp(absl::StatusCode::kInternal, "{}: CUDA error {}", oldest.what, query);
      return;
    }
    events_.push_back(oldest.event);
    pending_.pop_front();
  }
  if (!AsyncError().ok() || pending_.empty()) return;
  const Pending& oldest = pending_.front();
  if (SteadyClock::now() < oldest.deadline) return;
  (void)GiveUp(absl::StatusCode::kDeadlineExceeded, "{}: some rank did not come within {} ms",
               oldest.what, o_.timeout_ns / 1'000'000);
}

}  // namespace moert
