#include "exec/cuda/fetch/fetched_product.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/exception_status.h"
#include "base/rows.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert::cuda {

absl::StatusOr<std::unique_ptr<FetchedProduct>> FetchedProduct::Create(const Parts& parts) {
  const int64_t tokens = std::min<int64_t>(parts.max_tokens, kMostCpuTokens);
  std::unique_ptr<FetchedProduct> product(new FetchedProduct(parts, tokens));
  const MoeModelSpec& model = parts.source->model();
  int64_t hidden = 0, pairs = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[static_cast<size_t>(l)];
    hidden = std::max(hidden, layer.hidden);
    pairs = std::max(pairs, tokens * layer.routing.top_k);
    for (int e = 0; e < layer.num_experts; ++e) {
      if (parts.records->KeptRecord({l, e}, parts.version) != nullptr) continue;
      return absl::FailedPreconditionError(
          fmt::format("layer {} expert {}: its record is not in host memory", l, e));
    }
  }
  Carver count;
  product->Carve(pairs, hidden, &count);
  MOERT_ASSIGN_OR_RETURN(product->pinned_, Buffer::Pinned(count.used()));
  Carver carver(product->pinned_.data());
  product->Carve(pairs, hidden, &carver);
  new (product->memory_.mailbox) CpuMailbox;
  product->widened_ = AlignedArray<float>(tokens * hidden);
  product->experts_.reserve(static_cast<size_t>(pairs));
  product->row_of_.reserve(static_cast<size_t>(pairs));
  return product;
}

void FetchedProduct::Carve(int64_t pairs, int64_t hidden, Carver* carver) {
  constexpr int64_t kWidest = sizeof(float);
  memory_.mailbox = carver->Take<CpuMailbox>(1);
  memory_.job = carver->Take<CpuJob>(1);
  memory_.experts = carver->Take<CpuJobExpert>(pairs);
  memory_.slots = carver->Take<int32_t>(pairs);
  memory_.weights = carver->Take<float>(pairs);
  memory_.x = carver->Take<uint8_t>(max_tokens_ * hidden * kWidest);
  memory_.rows = carver->Take<float>(pairs * hidden);
}

void FetchedProduct::Answer() {
  const uint64_t job = PostedJob(*memory_.mailbox);
  const auto begin = std::chrono::steady_clock::now();
  int64_t modelled_ns = 0;
  absl::Status status;
  try {
    status = Multiply(&modelled_ns);
  } catch (...) {
    status = ExceptionStatus("the host's product on the CPU");
  }
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  {
    const MutexLock lock(&mu_);
    failure_.Update(status);
    if (status.ok()) {
      ++times_.jobs;
      times_.modelled_ns += modelled_ns;
      times_.took_ns += took.count();
    }
  }
  // Behind this the device may end the step, and the host ask for the failure.
  AnswerJob(memory_.mailbox, job, status.ok());
}

absl::Status FetchedProduct::Multiply(int64_t* modelled_ns) {
  const CpuJob& job = *memory_.job;
  const ExpertSource& source = *parts_.source;
  const int top_k = source.model().layers[static_cast<size_t>(job.layer)].routing.top_k;
  experts_.clear();
  row_of_.clear();
  for (int32_t i = 0; i < job.pairs; ++i) row_of_.push_back(memory_.slots[i] / top_k);
  for (int32_t i = 0; i < job.experts; ++i) {
    const CpuJobExpert& given = memory_.experts[i];
    const RecordLayout& layout = source.layout(job.layer, given.expert, parts_.version);
    const std::byte* record = parts_.records->KeptRecord({job.layer, given.expert}, parts_.version);
    OpaqueProduct::Expert expert{given.expert, given.pairs};
    for (size_t p = 0; p < layout.parts.size(); ++p) {
      expert.parts[p] = record + layout.parts[p].offset;
    }
    experts_.push_back(expert);
    *modelled_ns +=
        parts_.profile->CpuExpertNs(layout.bytes, given.pairs, source.version_name(parts_.version));
  }
  WidenRows({memory_.x, static_cast<DType>(job.dtype), job.tokens, job.cols, job.cols},
            widened_.data());
  OpaqueProduct product;
  product.layer = job.layer;
  product.hidden = job.cols;
  product.rows = job.tokens;
  product.x = widened_.data();
  product.experts = experts_;
  product.row_of = row_of_;
  product.weights = {memory_.weights, static_cast<size_t>(job.pairs)};
  product.out = memory_.rows;
  product.pool = parts_.pool;
  return (*source.product())(product);
}

FetchedProduct::Times FetchedProduct::TakeTimes() {
  const MutexLock lock(&mu_);
  return std::exchange(times_, Times{});
}

absl::Status FetchedProduct::TakeFailure() {
  const MutexLock lock(&mu_);
  return std::exchange(failure_, absl::OkStatus());
}

}  // namespace moert::cuda
