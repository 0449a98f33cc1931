#include "exec/cuda/cache/served_cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "base/exception_status.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert::cuda {
namespace {

std::atomic<bool> paused{false};

}  // namespace

absl::StatusOr<std::unique_ptr<ServedCpu>> ServedCpu::Create(const Parts& parts) {
  std::unique_ptr<ServedCpu> cpu(new ServedCpu(parts));
  const int64_t tokens = std::min<int64_t>(parts.max_tokens, kMostCpuTokens);
  int64_t hidden = 0, pairs = 0;
  bool weighted = false;
  const std::string version(parts.records->version_name(parts.version));
  for (int l = 0; l < parts.model->num_layers(); ++l) {
    const MoeLayerSpec& layer = parts.model->layers[static_cast<size_t>(l)];
    hidden = std::max(hidden, layer.hidden);
    pairs = std::max(pairs, tokens * layer.routing.top_k);
    weighted |= layer.routing.weight_input;
    std::vector<HostExpert>& experts = cpu->experts_.emplace_back();
    for (int e = 0; e < layer.num_experts; ++e) {
      const std::byte* record = parts.records->KeptRecord({l, e}, parts.version);
      if (record == nullptr) {
        return absl::FailedPreconditionError(
            fmt::format("layer {} expert {}: its record is not in host memory", l, e));
      }
      experts.push_back({e, record, &parts.records->layout(l, e, parts.version)});
    }
    std::vector<int64_t>& ns = cpu->expert_ns_.emplace_back(1, 0);
    for (int64_t t = 1; t <= tokens; ++t) {
      ns.push_back(parts.profile->CpuExpertNs(experts.front().layout->bytes, t, version));
    }
  }
  Carver count;
  cpu->Carve(tokens, pairs, hidden, &count);
  MOERT_ASSIGN_OR_RETURN(cpu->pinned_, Buffer::Pinned(count.used()));
  Carver carver(cpu->pinned_.data());
  cpu->Carve(tokens, pairs, hidden, &carver);
  new (cpu->memory_.mailbox) CpuMailbox;
  cpu->widened_ = AlignedArray<float>(tokens * hidden);
  if (weighted) cpu->weighted_ = AlignedArray<float>(pairs * hidden);
  cpu->tokens_of_.reserve(static_cast<size_t>(pairs));
  cpu->out_rows_.reserve(static_cast<size_t>(pairs));
  return cpu;
}

void ServedCpu::Carve(int64_t tokens, int64_t pairs, int64_t hidden, Carver* carver) {
  constexpr int64_t kWidest = sizeof(float);
  memory_.mailbox = carver->Take<CpuMailbox>(1);
  memory_.job = carver->Take<CpuJob>(1);
  memory_.experts = carver->Take<CpuJobExpert>(pairs);
  memory_.slots = carver->Take<int32_t>(pairs);
  memory_.weights = carver->Take<float>(pairs);
  memory_.x = carver->Take<uint8_t>(tokens * hidden * kWidest);
  memory_.rows = carver->Take<float>(pairs * hidden);
}

bool ServedCpu::Waiting() const {
  return PostedJob(*memory_.mailbox) != 0 && !paused.load(std::memory_order_relaxed);
}

void ServedCpu::Answer() {
  const uint64_t job = PostedJob(*memory_.mailbox);
  const auto begin = std::chrono::steady_clock::now();
  int64_t modelled_ns = 0;
  absl::Status status;
  try {
    status = Multiply(&modelled_ns);
  } catch (...) {  // a host's thread pool, or no memory
    status = ExceptionStatus("experts on the CPU");
  }
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  AnswerJob(memory_.mailbox, job, status.ok());  // else the device multiplies
  if (!status.ok()) return;
  const MutexLock lock(&mu_);
  ++times_.jobs;
  times_.modelled_ns += modelled_ns;
  times_.took_ns += took.count();
}

absl::Status ServedCpu::Multiply(int64_t* modelled_ns) {
  *modelled_ns = FillProblems();
  int64_t rows = 0;
  const float* x = Inputs(&rows);
  return parts_.gemm->Run(x, rows, memory_.job->cols, problems_, memory_.rows);
}

int64_t ServedCpu::FillProblems() {
  const CpuJob& job = *memory_.job;
  const MoeLayerSpec& layer = parts_.model->layers[static_cast<size_t>(job.layer)];
  tokens_of_.clear();
  out_rows_.clear();
  problems_.clear();
  for (int32_t i = 0; i < job.pairs; ++i) {
    tokens_of_.push_back(memory_.slots[i] / layer.routing.top_k);
    out_rows_.push_back(i);
  }
  int64_t modelled_ns = 0;
  size_t first = 0;
  for (int32_t i = 0; i < job.experts; ++i) {
    const CpuJobExpert& given = memory_.experts[i];
    const HostExpert& expert =
        experts_[static_cast<size_t>(job.layer)][static_cast<size_t>(given.expert)];
    const auto count = static_cast<size_t>(given.pairs);
    const auto rows = absl::MakeConstSpan(out_rows_).subspan(first, count);
    const auto tokens = absl::MakeConstSpan(tokens_of_).subspan(first, count);
    problems_.push_back({expert.record, expert.layout, layer.activation,
                         layer.routing.weight_input ? rows : tokens, rows});
    modelled_ns += expert_ns_[static_cast<size_t>(job.layer)][count];
    first += count;
  }
  return modelled_ns;
}

const float* ServedCpu::Inputs(int64_t* rows) {
  const CpuJob& job = *memory_.job;
  const MatrixView x{memory_.x, static_cast<DType>(job.dtype), job.tokens, job.cols, job.cols};
  WidenRows(x, widened_.data());
  *rows = job.tokens;
  if (!parts_.model->layers[static_cast<size_t>(job.layer)].routing.weight_input) {
    return widened_.data();
  }
  // A row of its own for every pair, its token's times its weight.
  *rows = job.pairs;
  WeightRows(widened_.data(), tokens_of_, memory_.weights, job.cols, weighted_.data());
  return weighted_.data();
}

ServedCpu::Times ServedCpu::TakeTimes() {
  const MutexLock lock(&mu_);
  return std::exchange(times_, Times{});
}

void ServedCpu::Pause(bool now) { paused.store(now, std::memory_order_relaxed); }

}  // namespace moert::cuda
