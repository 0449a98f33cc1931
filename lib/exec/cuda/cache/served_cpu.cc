#include "exec/cuda/cache/served_cpu.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "base/errors.h"
#include "base/rows.h"
#include "base/status_macros.h"

namespace moert::cuda {
namespace {

std::atomic<bool> paused{false};

}  // namespace

absl::StatusOr<std::unique_ptr<ServedCpu>> ServedCpu::Create(const Parts& parts) {
  std::unique_ptr<ServedCpu> cpu(new ServedCpu(parts));
  const int64_t tokens = std::min<int64_t>(parts.max_tokens, kMostCpuTokens);
  bool weighted = false;
  MOERT_RETURN_IF_ERROR(cpu->records_.Check());
  const std::string version(parts.records->version_name(parts.version));
  for (int l = 0; l < parts.model->num_layers(); ++l) {
    const MoeLayerSpec& layer = parts.model->layers[l];
    weighted |= layer.routing.weight_input;
    const int64_t bytes = parts.records->layout(l, 0, parts.version).bytes;
    std::vector<int64_t>& ns = cpu->expert_ns_.emplace_back(1, 0);
    for (int64_t t = 1; t <= tokens; ++t) {
      ns.push_back(parts.profile->CpuExpertNs(bytes, t, version));
    }
  }
  MOERT_RETURN_IF_ERROR(cpu->Init(*parts.model, tokens));
  if (weighted) {
    const auto widest = std::max_element(
        parts.model->layers.begin(), parts.model->layers.end(),
        [](const MoeLayerSpec& a, const MoeLayerSpec& b) { return a.hidden < b.hidden; });
    cpu->weighted_ = AlignedArray<float>(cpu->most_pairs() * widest->hidden);
  }
  cpu->tokens_of_.reserve(cpu->most_pairs());
  cpu->out_rows_.reserve(cpu->most_pairs());
  return cpu;
}

bool ServedCpu::Waiting() const {
  return AnsweredJobs::Waiting() && !paused.load(std::memory_order_relaxed);
}

absl::Status ServedCpu::Multiply(int64_t* modelled_ns, int64_t* read_ns) {
  *modelled_ns = FillProblems();
  int64_t rows = 0;
  const float* x = Inputs(&rows);
  const absl::Status status = MultiplyFound(x, rows);
  *read_ns = records_.EndJob();
  return status;
}

absl::Status ServedCpu::MultiplyFound(const float* x, int64_t rows) {
  const CpuJob& job = *memory().job;
  const auto experts = absl::MakeConstSpan(memory().experts, job.experts);
  for (size_t first = 0; first < experts.size(); first += found_.size()) {
    MOERT_RETURN_IF_ERROR(records_.Find(job.layer, experts.subspan(first), &found_));
    const auto problems = absl::MakeSpan(problems_).subspan(first, found_.size());
    for (size_t i = 0; i < found_.size(); ++i) problems[i].record = found_[i];
    MOERT_RETURN_IF_ERROR(parts_.gemm->Run(x, rows, job.cols, problems, memory().rows));
  }
  return absl::OkStatus();
}

int64_t ServedCpu::FillProblems() {
  const CpuJob& job = *memory().job;
  const MoeLayerSpec& layer = parts_.model->layers[job.layer];
  tokens_of_.clear();
  out_rows_.clear();
  problems_.clear();
  for (int32_t i = 0; i < job.pairs; ++i) {
    tokens_of_.push_back(memory().slots[i] / layer.routing.top_k);
    out_rows_.push_back(i);
  }
  int64_t modelled_ns = 0;
  size_t first = 0;
  for (int32_t i = 0; i < job.experts; ++i) {
    const CpuJobExpert& given = memory().experts[i];
    const auto count = static_cast<size_t>(given.pairs);
    const auto rows = absl::MakeConstSpan(out_rows_).subspan(first, count);
    const auto tokens = absl::MakeConstSpan(tokens_of_).subspan(first, count);
    problems_.push_back({nullptr, &parts_.records->layout(job.layer, given.expert, parts_.version),
                         layer.activation, layer.routing.weight_input ? rows : tokens, rows});
    modelled_ns += expert_ns_[job.layer][count];
    first += count;
  }
  return modelled_ns;
}

const float* ServedCpu::Inputs(int64_t* rows) {
  const CpuJob& job = *memory().job;
  const float* x = WidenedRows();
  *rows = job.tokens;
  if (!parts_.model->layers[job.layer].routing.weight_input) return x;
  // Every pair reads a row of its own: its token's row times the pair's weight.
  *rows = job.pairs;
  WeightRows(x, tokens_of_, memory().weights, job.cols, weighted_.data());
  return weighted_.data();
}

void ServedCpu::Pause(bool now) { paused.store(now, std::memory_order_relaxed); }

}  // namespace moert::cuda
