#include "host/blocks/attend.h"

#include <algorithm>
#include <cmath>

#include "host/blocks/panel_gemm.h"

namespace moert::host {
namespace {

// Queries that share one pass over keys and values.
constexpr int64_t kQueriesPerBlock = 32;
// From this many rows on, a block consists of rows of one head.
constexpr int64_t kManyRows = 8;

int64_t RoundUp(int64_t n) { return (n + kPanelWidth - 1) / kPanelWidth * kPanelWidth; }

}  // namespace

void Attend::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* queries,
                     float* mixed) {
  blocks_.clear();
  for (const RowGroup& group : groups) Divide(group, pool->num_threads());
  int64_t most_scores = 0;
  for (const Block& block : blocks_) most_scores = std::max(most_scores, ScoresOf(block));
  scores_.resize(pool->num_threads());
  std::vector<Scratch> scratch(scores_.size());
  for (size_t i = 0; i < scores_.size(); ++i) {
    scores_[i].resize(most_scores);
    scratch[i].scores = &scores_[i];
  }
  pool->Run(static_cast<int64_t>(blocks_.size()), [&](int64_t index, int worker) {
    Run(blocks_[index], queries, mixed, &scratch[worker]);
  });
}

int64_t Attend::ScoresOf(const Block& block) const {
  const ChosenBlocks* const chosen = ChosenOf(*block.group);
  const bool chooses = chosen != nullptr && block.first >= chosen->first();
  const int64_t keys =
      chooses ? chosen->width() : block.group->sequence->length() + block.first + block.rows;
  return block.rows * block.heads * RoundUp(keys);
}

void Attend::Divide(const RowGroup& group, int threads) {
  const ChosenBlocks* const chosen = ChosenOf(group);
  const int64_t seeing = chosen == nullptr ? group.rows : chosen->first();  // rows that see all
  if (seeing >= kManyRows) {
    for (int64_t first = 0; first < seeing; first += kQueriesPerBlock) {
      const int64_t count = std::min(kQueriesPerBlock, seeing - first);
      for (int head = 0; head < shape_.heads; ++head) {
        blocks_.push_back({&group, first, count, head, 1});
      }
    }
  } else {
    DivideRows(group, 0, seeing, kQueriesPerBlock, threads);
  }
  // All query heads of a key head see the same positions, which are gathered once per block.
  DivideRows(group, seeing, group.rows, shape_.heads, threads);
}

void Attend::DivideRows(const RowGroup& group, int64_t first, int64_t end, int64_t most,
                        int threads) {
  const int per_key = shape_.heads / shape_.kv_heads;
  const int64_t share = (end - first) * shape_.heads / threads;
  const int step =
      static_cast<int>(std::clamp<int64_t>(share, 1, std::min<int64_t>(per_key, most)));
  for (int64_t row = first; row < end; ++row) {
    for (int key_head = 0; key_head < shape_.kv_heads; ++key_head) {
      const int end_head = (key_head + 1) * per_key;
      for (int head = key_head * per_key; head < end_head; head += step) {
        blocks_.push_back({&group, row, 1, head, std::min(step, end_head - head)});
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

void Attend::Run(const Block& block, const float* queries, float* mixed, Scratch* scratch) {
  const auto* cache = static_cast<KvPanels*>(block.group->sequence->layer(shape_.layer));
  const int64_t row_stride = shape_.heads * shape_.head_stride;
  const int64_t first_row = block.group->first_row + block.first;
  const int64_t position = block.group->sequence->length() + block.first;
  int64_t num_keys = position + block.rows;  // keys that the block's last row sees
  int64_t begin = FirstKey(position) / kPanelWidth * kPanelWidth;
  int kv_head = block.head / (shape_.heads / shape_.kv_heads);
  const ChosenBlocks* const choices = ChosenOf(*block.group);
  const bool chooses = choices != nullptr && block.first >= choices->first();
  if (chooses) {
    num_keys = Gather(*cache, kv_head, *choices, block.first, position, &scratch->gathered);
    cache = scratch->gathered.get();
    begin = kv_head = 0;
  }
  const int64_t padded = RoundUp(num_keys - begin);
  const int64_t count = block.rows * block.heads;
  float* const scores = scratch->scores->data();

  PanelGemm g{};
  g.x = queries + first_row * row_stride + block.head * shape_.head_stride;
  g.x_stride = block.rows > 1 ? row_stride : shape_.head_stride;
  g.rows = count;
  g.k = shape_.key_dim;
  g.panels = cache->keys(kv_head) + begin / kPanelWidth * cache->key_panel_stride();
  g.panel_stride = cache->key_panel_stride();
  g.num_panels = padded / kPanelWidth;
  g.y = scores;
  g.y_stride = padded;
  Panel().f32(g);

  for (int64_t r = 0; r < count; ++r) {
    const int64_t at = block.rows > 1 ? position + r : position;
    const int head = block.rows > 1 ? block.head : block.head + static_cast<int>(r);
    float* const s = scores + r * padded;
    const int64_t first = chooses ? 0 : FirstKey(at) - begin;
    const int64_t end = chooses ? num_keys : at + 1 - begin;
    Softmax(head, s, first, end);
    // A probability of 0 does not change the sums below: masked keys cost time, never bits.
    std::fill(s, s + first, 0.0f);
    std::fill(s + end, s + num_keys - begin, 0.0f);
  }

  g.x = scores;
  g.x_stride = padded;
  g.k = num_keys - begin;
  g.panels = cache->values(kv_head) + begin * kPanelWidth;
  g.panel_stride = cache->value_panel_stride();
  g.num_panels = shape_.value_dim / kPanelWidth;
  g.y = mixed + (first_row * shape_.heads + block.head) * shape_.value_dim;
  g.y_stride = block.rows > 1 ? shape_.heads * shape_.value_dim : shape_.value_dim;
  Panel().f32(g);
}

const ChosenBlocks* Attend::ChosenOf(const RowGroup& group) const {
  if (shape_.chooser < 0) return nullptr;
  const auto* state = static_cast<IndexedPanels*>(group.sequence->layer(shape_.chooser));
  // Without a state the layer runs alone, on sequences so short that each row sees all.
  return state == nullptr ? nullptr : &state->chosen();
}

int64_t Attend::Gather(const KvPanels& cache, int kv_head, const ChosenBlocks& choices, int64_t row,
                       int64_t position, std::unique_ptr<KvPanels>* gathered) const {
  if (*gathered == nullptr) {
    *gathered =
        std::make_unique<KvPanels>(1, shape_.key_dim, shape_.value_dim, RoundUp(choices.width()));
  }
  int64_t count = 0;
  for (const int64_t block : choices.Row(row, kv_head)) {
    const int64_t first = block * choices.block_size();
    const int64_t end = std::min(first + choices.block_size(), position + 1);
    for (int64_t at = first; at < end; ++at) (*gathered)->Copy(cache, kv_head, at, 0, count++);
  }
  return count;
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
