#include "exec/cuda/fetch/fetched_product.h"

#include <algorithm>

#include "base/status_macros.h"

namespace moert::cuda {

absl::StatusOr<std::unique_ptr<FetchedProduct>> FetchedProduct::Create(const Parts& parts) {
  const int64_t tokens = std::min<int64_t>(parts.max_tokens, kMostCpuTokens);
  std::unique_ptr<FetchedProduct> product(new FetchedProduct(parts, tokens));
  MOERT_RETURN_IF_ERROR(product->records_.Check());
  MOERT_RETURN_IF_ERROR(product->Init(parts.source->model(), tokens));
  product->experts_.reserve(product->most_pairs());
  product->row_of_.reserve(product->most_pairs());
  return product;
}

absl::Status FetchedProduct::Multiply(int64_t* modelled_ns, int64_t* read_ns) {
  const CpuJob& job = *memory().job;
  const int top_k = parts_.source->model().layers[job.layer].routing.top_k;
  row_of_.clear();
  for (int32_t i = 0; i < job.pairs; ++i) row_of_.push_back(memory().slots[i] / top_k);
  const absl::Status status = MultiplyFound(WidenedRows(), modelled_ns);
  *read_ns = records_.EndJob();
  return status;
}

absl::Status FetchedProduct::MultiplyFound(const float* x, int64_t* modelled_ns) {
  const CpuJob& job = *memory().job;
  const auto all = absl::MakeConstSpan(memory().experts, job.experts);
  int64_t pair = 0;
  for (size_t first = 0; first < all.size(); first += found_.size()) {
    MOERT_RETURN_IF_ERROR(records_.Find(job.layer, all.subspan(first), &found_));
    const int64_t pairs = FillExperts(first, modelled_ns);
    OpaqueProduct product;
    product.layer = job.layer;
    product.hidden = job.cols;
    product.rows = job.tokens;
    product.x = x;
    product.experts = experts_;
    product.row_of =
        absl::MakeConstSpan(row_of_).subspan(static_cast<size_t>(pair), static_cast<size_t>(pairs));
    product.weights = {memory().weights + pair, static_cast<size_t>(pairs)};
    product.out = memory().rows + pair * job.cols;
    product.pool = parts_.pool;
    MOERT_RETURN_IF_ERROR((*parts_.source->product())(product));
    pair += pairs;
  }
  return absl::OkStatus();
}

int64_t FetchedProduct::FillExperts(size_t first, int64_t* modelled_ns) {
  const CpuJob& job = *memory().job;
  const ExpertSource& source = *parts_.source;
  int64_t pairs = 0;
  experts_.clear();
  for (size_t i = 0; i < found_.size(); ++i) {
    const CpuJobExpert& given = memory().experts[first + i];
    const RecordLayout& layout = source.layout(job.layer, given.expert, parts_.version);
    OpaqueProduct::Expert expert{given.expert, given.pairs};
    for (size_t p = 0; p < layout.parts.size(); ++p) {
      expert.parts[p] = found_[i] != nullptr ? found_[i] + layout.parts[p].offset
                                             : source.HostPart(job.layer, given.expert,
                                                               parts_.version, static_cast<int>(p));
    }
    experts_.push_back(expert);
    pairs += given.pairs;
    *modelled_ns +=
        parts_.profile->CpuExpertNs(layout.bytes, given.pairs, source.version_name(parts_.version));
  }
  return pairs;
}

}  // namespace moert::cuda
