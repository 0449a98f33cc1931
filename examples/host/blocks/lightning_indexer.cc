#include "host/blocks/lightning_indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "host/blocks/compressed_state.h"
#include "host/blocks/indexed_panels.h"
#include "host/blocks/panel_gemm.h"
#include "host/blocks/row_jobs.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

constexpr float kKeyEps = 1e-6f;  // of the published code, as in kLatentEps
// Positions that one job scores: a multiple of the width of a panel.
constexpr int64_t kSlice = 1024;

}  // namespace

absl::StatusOr<LightningIndexer> LightningIndexer::Load(const Checkpoint& checkpoint,
                                                        const HfConfig& config, int layer,
                                                        const std::string& name, const Rope* rope) {
  LightningIndexer indexer;
  indexer.layer_ = layer;
  indexer.sizes_ = config.indexer;
  indexer.rope_ = rope;
  const int64_t heads = config.indexer.heads, dim = config.indexer.head_dim;
  const auto load = [&](const char* part, int64_t out, int64_t in) {
    return Linear::Load(checkpoint, config.quantization, name + part, out, in, false);
  };
  const int64_t rank = config.latent.q_rank + config.compressed.q_rank;  // one of them is 0
  MOERT_ASSIGN_OR_RETURN(indexer.query_, load("wq_b", heads * dim, rank));
  MOERT_ASSIGN_OR_RETURN(indexer.weight_, load("weights_proj", heads, config.hidden_size));
  MOERT_RETURN_IF_ERROR(indexer.LoadKeys(checkpoint, config, name));
  return indexer;
}

absl::Status LightningIndexer::LoadKeys(const Checkpoint& checkpoint, const HfConfig& config,
                                        const std::string& name) {
  const int64_t dim = sizes_.head_dim;
  if (config.compressed.q_rank > 0) {
    rate_ = config.mixers[layer_].rate;
    rotated_ = dim - config.compressed.rope_dim;
    const Compressor::Shape shape{rate_, true, dim, config.compressed.rope_dim};
    MOERT_ASSIGN_OR_RETURN(
        compressor_, Compressor::Load(checkpoint, config, name + "compressor.", shape, rope_));
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(key_, Linear::Load(checkpoint, config.quantization, name + "wk", dim,
                                            config.hidden_size, false));
  MOERT_ASSIGN_OR_RETURN(key_norm_,
                         Norm::Load(checkpoint, name + "k_norm", NormKind::kLayer, dim, kKeyEps));
  return absl::OkStatus();
}

CompressorTail LightningIndexer::NewTail() const {
  return compressor_.empty() ? CompressorTail() : compressor_.NewTail();
}

void LightningIndexer::StoreKeys(ThreadPool* pool, absl::Span<const RowGroup> groups,
                                 const float* x, int64_t rows) {
  if (!compressor_.empty()) {
    return compressor_.Forward(
        pool, groups, x, rows,
        [&](const RowGroup& group) -> CompressorTail& {
          return CompressedStateOf(group, layer_).index_tail();
        },
        [&](const RowGroup& group, int64_t entry, const float* key) {
          IndexedState(group, layer_).index_keys().Store(0, entry, key, nullptr);
        });
  }
  keys_.resize(rows * key_.out());
  key_.Forward(pool, x, rows, keys_.data());
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) { StoreKey(group, index); });
}

void LightningIndexer::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                               const float* latents, int64_t rows) {
  StoreKeys(pool, groups, x, rows);
  FindChoosers(groups, layer_, (sizes_.top_k + 1) * rate_ - 1, sizes_.top_k, &choosers_);
  if (choosers_.empty()) return;
  queries_.resize(rows * query_.out());
  weights_.resize(rows * weight_.out());
  query_.Forward(pool, latents, rows, queries_.data());
  weight_.Forward(pool, x, rows, weights_.data());
  ForEachRow(pool, groups,
             [&](const RowGroup& group, int64_t index) { RotateQueries(group, index); });
  const auto at_once =
      static_cast<size_t>(std::max<int64_t>(1, kIndexScores / LongestOf(choosers_)));
  for (size_t i = 0; i < choosers_.size(); i += at_once) {
    ScoreAndChoose(pool, absl::MakeConstSpan(choosers_).subspan(i, at_once));
  }
}

void LightningIndexer::StoreKey(const RowGroup& group, int64_t index) {
  const int64_t position = group.sequence->length() + index;
  float* const key = keys_.data() + (group.first_row + index) * sizes_.head_dim;
  key_norm_.Apply(key, key);
  rope_->Rotate(rope_->SetOf(group.sequence->max_tokens()), position, sizes_.interleaved, key);
  IndexedState(group, layer_).index_keys().Store(0, position, key, nullptr);
}

void LightningIndexer::RotateQueries(const RowGroup& group, int64_t index) {
  const int64_t position = group.sequence->length() + index;
  const int set = rope_->SetOf(group.sequence->max_tokens());
  float* const queries = queries_.data() + (group.first_row + index) * query_.out();
  for (int head = 0; head < sizes_.heads; ++head) {
    float* const query = queries + head * sizes_.head_dim + rotated_;
    rope_->Rotate(set, position, sizes_.interleaved, query);
  }
}

void LightningIndexer::ScoreAndChoose(ThreadPool* pool, absl::Span<const Chooser> choosers) {
  const auto count = static_cast<int64_t>(choosers.size());
  const int64_t stride = util::RoundUp(LongestOf(choosers) / rate_, kSlice);
  const int64_t slices = stride / kSlice;
  scores_.resize(count * stride);
  products_.resize(pool->num_threads());
  orders_.resize(pool->num_threads());
  pool->Run(count * slices, [&](int64_t job, int worker) {
    const Chooser& chooser = choosers[job / slices];
    const int64_t first = job % slices * kSlice;
    if (first >= ChoicesOf(chooser)) return;
    products_[worker].resize(sizes_.heads * kSlice);
    Score(chooser, first, products_[worker].data(), scores_.data() + job / slices * stride + first);
  });
  pool->Run(count, [&](int64_t i, int worker) {
    const Chooser& chooser = choosers[i];
    ChooseLargest(absl::MakeConstSpan(scores_.data() + i * stride, ChoicesOf(chooser)),
                  &orders_[worker],
                  {IndexedState(*chooser.group, layer_).chosen().row(chooser.index, 0),
                   static_cast<size_t>(sizes_.top_k)});
  });
}

void LightningIndexer::Score(const Chooser& chooser, int64_t first, float* products,
                             float* scores) const {
  const int64_t count = util::RoundUp(std::min(kSlice, ChoicesOf(chooser) - first), kPanelWidth);
  MultiplyIndexKeys(IndexedState(*chooser.group, layer_).index_keys(),
                    queries_.data() + chooser.row() * query_.out(), sizes_.heads, sizes_.head_dim,
                    first, count, products);
  const float* const weights = weights_.data() + chooser.row() * weight_.out();
  std::fill(scores, scores + count, 0.0f);
  for (int head = 0; head < sizes_.heads; ++head) {
    const float* const product = products + head * count;
    for (int64_t i = 0; i < count; ++i) scores[i] += weights[head] * std::max(0.0f, product[i]);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (std::isnan(scores[i])) scores[i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace moert::host
