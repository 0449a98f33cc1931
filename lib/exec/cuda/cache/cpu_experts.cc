#include "exec/cuda/cache/cpu_experts.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/rows.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "plan/layer_planner.h"

namespace moert::cuda {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuExperts>> CpuExperts::Create(const MoeModelSpec& model,
                                                               MixedGroupGemm* gemm,
                                                               int64_t max_tokens,
                                                               std::chrono::microseconds spin,
                                                               absl::Span<const int> cpus) {
  std::unique_ptr<CpuExperts> c(new CpuExperts(gemm, spin));
  c->max_tokens_ = std::min(max_tokens, CpuMisses::kMaxTokens);
  int64_t hidden = 0, pairs = 0;
  bool weighted = false;
  for (const MoeLayerSpec& layer : model.layers) {
    hidden = std::max(hidden, layer.hidden);
    pairs = std::max(pairs, c->max_tokens_ * layer.routing.top_k);
    weighted |= layer.routing.weight_input;
  }
  constexpr int64_t kFloat = sizeof(float);
  MOERT_ASSIGN_OR_RETURN(c->in_memory_, Buffer::Pinned(c->max_tokens_ * hidden * kFloat));
  MOERT_ASSIGN_OR_RETURN(c->out_memory_, Buffer::Pinned(pairs * hidden * kFloat));
  MOERT_ASSIGN_OR_RETURN(c->slot_memory_, Buffer::Pinned(pairs * 4));
  c->widened_ = AlignedArray<float>(c->max_tokens_ * hidden);
  if (weighted) c->weighted_ = AlignedArray<float>(pairs * hidden);
  try {
    c->thread_ = std::thread([p = c.get()] { p->Serve(); });
  } catch (const std::system_error& e) {
    return ResourceExhausted("starting a thread: {}", e.what());
  }
  if (!cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[0], &set);
    if (pthread_setaffinity_np(c->thread_.native_handle(), sizeof(set), &set) != 0) {
      return InvalidArgument("cannot pin a thread to CPU {}: not usable by this process", cpus[0]);
    }
  }
  return c;
}

CpuExperts::~CpuExperts() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mu_);
    stopping_ = true;
  }
  work_.NotifyAll();
  thread_.join();
}

absl::Status CpuExperts::BringRows(const MatrixView& hidden, cudaStream_t stream) const {
  const auto row_bytes = static_cast<size_t>(hidden.cols * DTypeBytes(hidden.dtype));
  return MOERT_CUDA_STATUS(cudaMemcpy2DAsync(
      in_memory_.data(), row_bytes, hidden.data,
      static_cast<size_t>(hidden.row_stride * DTypeBytes(hidden.dtype)), row_bytes,
      static_cast<size_t>(hidden.rows), cudaMemcpyDeviceToHost, stream));
}

void CpuExperts::TakeRows(const MatrixView& hidden) {
  arriving_ = {in_memory_.data(), hidden.dtype, hidden.rows, hidden.cols, hidden.cols};
  x_ = nullptr;
  tokens_ = hidden.rows;
  hidden_ = hidden.cols;
}

void CpuExperts::SetRows(const float* rows, int64_t tokens, int64_t hidden) {
  x_ = rows;
  tokens_ = tokens;
  hidden_ = hidden;
}

void CpuExperts::Begin(const RoutingResult& routing, absl::Span<const HostExpert> experts,
                       const MoeLayerSpec& layer) {
  const bool weighted = layer.routing.weight_input;
  tokens_of_.clear();
  weights_of_.clear();
  problems_.clear();
  auto* slot = reinterpret_cast<int32_t*>(slot_memory_.data());
  for (const HostExpert& e : experts) {
    const int32_t first = routing.offsets[e.expert];
    for (int32_t i = first; i < first + routing.counts[e.expert]; ++i) {
      const int32_t of = routing.grouped_slots[i];
      slot[tokens_of_.size()] = of;
      tokens_of_.push_back(routing.grouped_tokens[i]);
      if (weighted) weights_of_.push_back(routing.weights[of]);
    }
  }
  out_rows_.resize(tokens_of_.size());
  size_t first = 0;
  for (const HostExpert& e : experts) {
    const auto count = static_cast<size_t>(routing.counts[e.expert]);
    for (size_t i = first; i < first + count; ++i) out_rows_[i] = static_cast<int32_t>(i);
    const auto rows = absl::MakeConstSpan(out_rows_).subspan(first, count);
    problems_.push_back({e.record, e.layout, layer.activation,
                         weighted ? rows : absl::MakeConstSpan(tokens_of_).subspan(first, count),
                         rows});
    first += count;
  }
  busy_ = true;
  {
    const MutexLock lock(&mu_);
    posted_.fetch_add(1, std::memory_order_release);
  }
  work_.NotifyOne();
}

absl::Status CpuExperts::Join(int64_t* took_ns) {
  const auto done = [this] {
    return done_.load(std::memory_order_acquire) == posted_.load(std::memory_order_relaxed);
  };
  if (!SpinFor(spin_, done)) {
    const MutexLock lock(&mu_);
    while (!done()) finished_.Wait(&mu_);
  }
  busy_ = false;
  *took_ns = took_ns_;
  return status_;
}

void CpuExperts::Attach(PostedJobs* posted) { jobs_.store(posted, std::memory_order_release); }

void CpuExperts::Watch() {
  {
    const MutexLock lock(&mu_);
    watched_ = true;
  }
  work_.NotifyOne();
}

void CpuExperts::Serve() {
  while (true) {
    if (!SpinFor(spin_, [this] { return Begun() || Posted(); }) && !Rest()) return;
    if (Posted()) jobs_.load(std::memory_order_acquire)->Answer();
    if (!Begun()) continue;
    Multiply();
    {
      const MutexLock lock(&mu_);
      done_.fetch_add(1, std::memory_order_release);
    }
    finished_.NotifyAll();
  }
}

bool CpuExperts::Rest() {
  // The device cannot wake this thread, and nothing tells it when a step has ended. So it polls, at
  // longer intervals after kNapping.
  constexpr std::chrono::microseconds kNap{50}, kLongNap{5'000};
  constexpr std::chrono::seconds kNapping{1};
  const auto begin = std::chrono::steady_clock::now();
  const PostedJobs* const jobs = jobs_.load(std::memory_order_acquire);
  const bool naps = jobs != nullptr, owed = naps && jobs->Owed();
  const MutexLock lock(&mu_);
  while (!stopping_ && !Begun() && !Posted() && !watched_) {
    if (naps && std::chrono::steady_clock::now() < begin + kNapping) {
      work_.WaitFor(&mu_, kNap);
    } else if (owed) {
      work_.WaitFor(&mu_, kLongNap);
    } else {
      work_.Wait(&mu_);
    }
  }
  watched_ = false;
  return !stopping_ || Begun();  // finishes a begun job first: a caller may wait for it
}

void CpuExperts::Multiply() {
  const int64_t begin_ns = NowNs();
  try {
    if (x_ == nullptr) {
      WidenRows(arriving_, widened_.data());
      x_ = widened_.data();
    }
    const bool weighted = !weights_of_.empty();
    if (weighted) WeightRows(x_, tokens_of_, weights_of_.data(), hidden_, weighted_.data());
    const auto rows = weighted ? static_cast<int64_t>(weights_of_.size()) : tokens_;
    status_ = gemm_->Run(weighted ? weighted_.data() : x_, rows, hidden_, problems_,
                         reinterpret_cast<float*>(out_memory_.data()));
  } catch (...) {  // thrown by the host's thread pool, or out of memory
    status_ = ExceptionStatus("experts on the CPU");
  }
  took_ns_ = NowNs() - begin_ns;
}

}  // namespace moert::cuda
