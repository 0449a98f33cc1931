#include "host/blocks/block_indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "host/blocks/indexed_panels.h"
#include "host/blocks/panel_gemm.h"
#include "host/blocks/row_jobs.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Positions that one job scores, before they are rounded up to whole blocks and panels.
constexpr int64_t kBlockSlice = 1024;

}  // namespace

absl::StatusOr<BlockIndexer> BlockIndexer::Load(const Checkpoint& checkpoint,
                                                const HfConfig& config, int layer,
                                                const std::string& name, const Rope* rope) {
  BlockIndexer indexer;
  indexer.layer_ = layer;
  indexer.sizes_ = config.indexer;
  indexer.slice_ = util::RoundUp(kBlockSlice, std::lcm(config.indexer.block_size, kPanelWidth));
  indexer.rope_ = rope;
  const int64_t heads = config.indexer.heads, dim = config.indexer.head_dim;
  const auto load = [&](const char* part, int64_t out) {
    return Linear::Load(checkpoint, config.quantization, name + part, out, config.hidden_size,
                        false);
  };
  const auto norm = [&](const char* part) {
    return Norm::Load(checkpoint, name + part, config.norm, dim,
                      static_cast<float>(config.norm_eps));
  };
  MOERT_ASSIGN_OR_RETURN(indexer.query_, load("index_q_proj", heads * dim));
  MOERT_ASSIGN_OR_RETURN(indexer.key_, load("index_k_proj", dim));
  MOERT_ASSIGN_OR_RETURN(indexer.query_norm_, norm("index_q_norm"));
  MOERT_ASSIGN_OR_RETURN(indexer.key_norm_, norm("index_k_norm"));
  return indexer;
}

void BlockIndexer::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                           int64_t rows) {
  keys_.resize(rows * key_.out());
  key_.Forward(pool, x, rows, keys_.data());
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) {
    float* const key = keys_.data() + (group.first_row + index) * sizes_.head_dim;
    Finish(key_norm_, group, index, key);
    IndexedState(group, layer_)
        .index_keys()
        .Store(0, group.sequence->length() + index, key, nullptr);
  });
  FindChoosers(groups, layer_, sizes_.top_k * sizes_.block_size, sizes_.top_k, &choosers_);
  if (choosers_.empty()) return;
  queries_.resize(rows * query_.out());
  query_.Forward(pool, x, rows, queries_.data());
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) {
    float* const queries = queries_.data() + (group.first_row + index) * query_.out();
    for (int head = 0; head < sizes_.heads; ++head) {
      Finish(query_norm_, group, index, queries + head * sizes_.head_dim);
    }
  });
  const int64_t most = BlocksOf(LongestOf(choosers_)) * sizes_.heads;
  const auto at_once = static_cast<size_t>(std::max<int64_t>(1, kIndexScores / most));
  for (size_t i = 0; i < choosers_.size(); i += at_once) {
    ScoreAndChoose(pool, absl::MakeConstSpan(choosers_).subspan(i, at_once));
  }
}

int64_t BlockIndexer::BlocksOf(int64_t positions) const {
  return (positions + sizes_.block_size - 1) / sizes_.block_size;
}

void BlockIndexer::Finish(const Norm& norm, const RowGroup& group, int64_t index,
                          float* head) const {
  norm.Apply(head, head);
  rope_->Rotate(rope_->SetOf(group.sequence->max_tokens()), group.sequence->length() + index, head);
}

void BlockIndexer::ScoreAndChoose(ThreadPool* pool, absl::Span<const Chooser> choosers) {
  const auto count = static_cast<int64_t>(choosers.size());
  const int64_t longest = LongestOf(choosers);
  const int64_t stride = BlocksOf(longest), slices = (longest + slice_ - 1) / slice_;
  const int64_t scratch = sizes_.heads * std::min(slice_, util::RoundUp(longest, kPanelWidth));
  scores_.resize(count * sizes_.heads * stride);
  products_.resize(pool->num_threads());
  orders_.resize(pool->num_threads());
  const auto scores_of = [&](int64_t i) { return scores_.data() + i * sizes_.heads * stride; };
  pool->Run(count * slices, [&](int64_t job, int worker) {
    const Chooser& chooser = choosers[job / slices];
    const int64_t first = job % slices * slice_;
    const int64_t end = std::min(first + slice_, chooser.positions());
    if (first >= end) return;
    products_[worker].resize(scratch);
    Score(chooser, first, end, stride, products_[worker].data(), scores_of(job / slices));
  });
  pool->Run(count * sizes_.heads, [&](int64_t job, int worker) {
    const int64_t i = job / sizes_.heads;
    const int head = static_cast<int>(job % sizes_.heads);
    Choose(choosers[i], head, scores_of(i) + head * stride, &orders_[worker]);
  });
}

void BlockIndexer::Score(const Chooser& chooser, int64_t first, int64_t end, int64_t stride,
                         float* products, float* scores) const {
  const int64_t count = util::RoundUp(end - first, kPanelWidth);
  MultiplyIndexKeys(IndexedState(*chooser.group, layer_).index_keys(),
                    queries_.data() + chooser.row() * query_.out(), sizes_.heads, sizes_.head_dim,
                    first, count, products);
  for (int head = 0; head < sizes_.heads; ++head) {
    const float* const product = products + head * count;
    for (int64_t at = first; at < end; at += sizes_.block_size) {
      float best = -kInfinity;  // also if all products are NaN
      const int64_t block_end = std::min(end, at + sizes_.block_size);
      for (int64_t i = at; i < block_end; ++i) best = std::max(best, product[i - first]);
      scores[head * stride + at / sizes_.block_size] = best;
    }
  }
}

void BlockIndexer::Choose(const Chooser& chooser, int head, float* scores,
                          std::vector<int32_t>* order) const {
  const int64_t blocks = BlocksOf(chooser.positions());
  std::fill(scores + blocks - sizes_.local_blocks, scores + blocks, kInfinity);
  ChooseLargest(absl::MakeConstSpan(scores, blocks), order,
                {IndexedState(*chooser.group, layer_).chosen().row(chooser.index, head),
                 static_cast<size_t>(sizes_.top_k)});
}

}  // namespace moert::host
