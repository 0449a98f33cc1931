#include "host/blocks/attend.h"

#include <algorithm>
#include <cmath>

#include "host/blocks/indexed_panels.h"
#include "host/blocks/kv_panels.h"
#include "host/blocks/panel_gemm.h"

namespace moert::host {
namespace {

// Queries that share one pass over keys and values.
constexpr int64_t kQueriesPerBlock = 32;
// From this many rows on, a block is rows of one head.
constexpr int64_t kManyRows = 8;

int64_t RoundUp(int64_t n) { return (n + kPanelWidth - 1) / kPanelWidth * kPanelWidth; }

}  // namespace

void Attend::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* queries,
                     float* mixed) {
  blocks_.clear();
  int64_t most_keys = 0;
  for (const RowGroup& group : groups) {
    most_keys = std::max(most_keys, group.sequence->length() + group.rows);
    Divide(group, pool->num_threads());
  }
  scores_.resize(pool->num_threads());
  for (auto& scores : scores_) scores.resize(kQueriesPerBlock * RoundUp(most_keys));
  pool->Run(static_cast<int64_t>(blocks_.size()), [&](int64_t index, int worker) {
    Run(blocks_[index], queries, mixed, &scores_[worker]);
  });
}

void Attend::Divide(const RowGroup& group, int threads) {
  if (group.rows >= kManyRows) {
    for (int64_t first = 0; first < group.rows; first += kQueriesPerBlock) {
      const int64_t count = std::min(kQueriesPerBlock, group.rows - first);
      for (int head = 0; head < shape_.heads; ++head) {
        blocks_.push_back({&group, first, count, head, 1});
      }
    }
    return;
  }
  const int per_key = shape_.heads / shape_.kv_heads;
  const int64_t share = group.rows * shape_.heads / threads;
  const int step =
      static_cast<int>(std::clamp<int64_t>(share, 1, std::min<int64_t>(per_key, kQueriesPerBlock)));
  for (int64_t row = 0; row < group.rows; ++row) {
    for (int key_head = 0; key_head < shape_.kv_heads; ++key_head) {
      const int end = (key_head + 1) * per_key;
      for (int head = key_head * per_key; head < end; head += step) {
        blocks_.push_back({&group, row, 1, head, std::min(step, end - head)});
      }
    }
  }
}

int64_t Attend::FirstKey(int64_t position) const {
  const MixerConfig& mixer = shape_.mixer;
  switch (mixer.kind) {
    case MixerKind::kWindow:
      return std::max<int64_t>(0, position + 1 - mixer.span);
    case MixerKind::kChunk:
      return position / mixer.span * mixer.span;
    default:
      return 0;
  }
}

void Attend::Run(const Block& block, const float* queries, float* mixed,
                 AlignedVector<float>* scratch) {
  const KvPanels& cache = *static_cast<KvPanels*>(block.group->sequence->layer(shape_.layer));
  const int64_t row_stride = shape_.heads * shape_.head_stride;
  const int64_t first_row = block.group->first_row + block.first;
  const int64_t position = block.group->sequence->length() + block.first;
  const int64_t num_keys = position + block.rows;  // what the block's last row sees
  const int64_t begin = FirstKey(position) / kPanelWidth * kPanelWidth;
  const int64_t padded = RoundUp(num_keys - begin);
  const int64_t count = block.rows * block.heads;
  const int kv_head = block.head / (shape_.heads / shape_.kv_heads);
  float* const scores = scratch->data();

  PanelGemm g{};
  g.x = queries + first_row * row_stride + block.head * shape_.head_stride;
  g.x_stride = block.rows > 1 ? row_stride : shape_.head_stride;
  g.rows = count;
  g.k = shape_.key_dim;
  g.panels = cache.keys(kv_head) + begin / kPanelWidth * cache.key_panel_stride();
  g.panel_stride = cache.key_panel_stride();
  g.num_panels = padded / kPanelWidth;
  g.y = scores;
  g.y_stride = padded;
  Panel().f32(g);

  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = block.rows > 1 ? position + r : position;
    const int head = block.rows > 1 ? block.head : block.head + static_cast<int>(r);
    float* const s = scores + r * padded;
    const auto chosen = Chosen(*block.group, at - block.group->sequence->length());
    if (!chosen.empty()) {
      SoftmaxOfChosen(head, chosen, num_keys, s);
      continue;
    }
    const int64_t first = FirstKey(at) - begin, end = at + 1 - begin;
    Softmax(head, s, first, end);
    // A probability of 0 leaves the sums below as they are: masked keys cost time, never bits.
    std::fill(s, s + first, 0.0f);
    std::fill(s + end, s + num_keys - begin, 0.0f);
  }

  g.x = scores;
  g.x_stride = padded;
  g.k = num_keys - begin;
  g.panels = cache.values(kv_head) + begin * kPanelWidth;
  g.panel_stride = cache.value_panel_stride();
  g.num_panels = shape_.value_dim / kPanelWidth;
  g.y = mixed + (first_row * shape_.heads + block.head) * shape_.value_dim;
  g.y_stride = block.rows > 1 ? shape_.heads * shape_.value_dim : shape_.value_dim;
  Panel().f32(g);
}

absl::Span<const int32_t> Attend::Chosen(const RowGroup& group, int64_t row) const {
  if (shape_.chooser < 0) return {};
  const auto* state = static_cast<IndexedPanels*>(group.sequence->layer(shape_.chooser));
  return state == nullptr ? absl::Span<const int32_t>() : state->chosen().Row(row);
}

void Attend::SoftmaxOfChosen(int head, absl::Span<const int32_t> chosen, int64_t count,
                             float* s) const {
  const auto width = static_cast<int64_t>(chosen.size());
  for (int64_t i = 0; i < width; ++i) s[i] = s[chosen[i]];  // ascending: never in front of its own
  Softmax(head, s, 0, width);
  for (int64_t i = width, end = count; i-- > 0; end = chosen[i]) {
    const float probability = s[i];
    std::fill(s + chosen[i], s + end, 0.0f);
    s[chosen[i]] = probability;
  }
  std::fill(s, s + chosen[0], 0.0f);
}

void Attend::Softmax(int head, float* s, int64_t first, int64_t end) const {
  const float scale = shape_.scale;
  float max = s[first];
  for (int64_t i = first; i < end; ++i) max = std::max(max, s[i]);
  double sum = 0.0;
  if (!shape_.sinks.empty()) {
    max = std::max(max, shape_.sinks[head] / scale);
    sum = std::exp(shape_.sinks[head] - max * scale);
  }
  for (int64_t i = first; i < end; ++i) {
    s[i] = std::exp((s[i] - max) * scale);
    sum += s[i];
  }
  const float inverse = static_cast<float>(1.0 / sum);
  for (int64_t i = first; i < end; ++i) s[i] *= inverse;
}

}  // namespace moert::host
