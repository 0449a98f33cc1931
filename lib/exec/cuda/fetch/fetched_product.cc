#include "exec/cuda/fetch/fetched_product.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"

namespace moert::cuda {

absl::StatusOr<std::unique_ptr<FetchedProduct>> FetchedProduct::Create(const Parts& parts) {
  const int64_t tokens = std::min<int64_t>(parts.max_tokens, kMostCpuTokens);
  std::unique_ptr<FetchedProduct> product(new FetchedProduct(parts, tokens));
  const MoeModelSpec& model = parts.source->model();
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    for (int e = 0; e < layer.num_experts; ++e) {
      if (parts.records->KeptRecord({l, e}, parts.version) != nullptr) continue;
      return FailedPrecondition("layer {} expert {}: its record is not in host memory", l, e);
    }
  }
  MOERT_RETURN_IF_ERROR(product->Init(model, tokens));
  product->experts_.reserve(product->most_pairs());
  product->row_of_.reserve(product->most_pairs());
  return product;
}

absl::Status FetchedProduct::Multiply(int64_t* modelled_ns) {
  const CpuJob& job = *memory().job;
  const ExpertSource& source = *parts_.source;
  const int top_k = source.model().layers[job.layer].routing.top_k;
  experts_.clear();
  row_of_.clear();
  for (int32_t i = 0; i < job.pairs; ++i) row_of_.push_back(memory().slots[i] / top_k);
  for (int32_t i = 0; i < job.experts; ++i) {
    const CpuJobExpert& given = memory().experts[i];
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
  OpaqueProduct product;
  product.layer = job.layer;
  product.hidden = job.cols;
  product.rows = job.tokens;
  product.x = WidenedRows();
  product.experts = experts_;
  product.row_of = row_of_;
  product.weights = {memory().weights, static_cast<size_t>(job.pairs)};
  product.out = memory().rows;
  product.pool = parts_.pool;
  return (*source.product())(product);
}

}  // namespace moert::cuda
