#include "host/attention.h"

#include <algorithm>
#include <cmath>

#include "host/panel_gemm.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

// Query rows that share one pass over keys and values.
constexpr int64_t kRowsPerBlock = 32;

}  // namespace

absl::StatusOr<Attention> Attention::Load(const Checkpoint& checkpoint, const HfConfig& config,
                                          int layer, const Rope* rope) {
  Attention a;
  a.layer_ = layer;
  a.heads_ = config.num_attention_heads;
  a.kv_heads_ = config.num_key_value_heads;
  a.head_dim_ = config.head_dim;
  a.window_ = config.sliding_window[layer];
  a.clip_ = static_cast<float>(config.clip_qkv);
  a.qk_norm_ = config.qk_norm;
  a.rope_ = rope;
  const std::string name = "model.layers." + std::to_string(layer) + ".self_attn.";
  const int64_t q = config.num_attention_heads * config.head_dim,
                kv = config.num_key_value_heads * config.head_dim;
  const auto load = [&](const char* part, int64_t out, int64_t in, bool bias) {
    return Linear::Load(checkpoint, name + part, out, in, bias);
  };
  MOERT_ASSIGN_OR_RETURN(a.q_, load("q_proj", q, config.hidden_size, config.qkv_bias));
  MOERT_ASSIGN_OR_RETURN(a.k_, load("k_proj", kv, config.hidden_size, config.qkv_bias));
  MOERT_ASSIGN_OR_RETURN(a.v_, load("v_proj", kv, config.hidden_size, config.qkv_bias));
  MOERT_ASSIGN_OR_RETURN(a.o_, load("o_proj", config.hidden_size, q, config.attention_output_bias));
  if (config.qk_norm != QkNorm::kNone) {
    const bool per_head = config.qk_norm == QkNorm::kPerHead;
    const auto norm = [&](const char* part, int64_t full) {
      return Norm::Load(checkpoint, name + part, NormKind::kRms, per_head ? config.head_dim : full,
                        static_cast<float>(config.norm_eps));
    };
    MOERT_ASSIGN_OR_RETURN(a.q_norm_, norm("q_norm", q));
    MOERT_ASSIGN_OR_RETURN(a.k_norm_, norm("k_norm", kv));
  }
  return a;
}

void Attention::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                        int64_t rows, float* out) {
  queries_.resize(rows * q_.out());
  mixed_.resize(rows * q_.out());
  keys_.resize(rows * k_.out());
  values_.resize(rows * k_.out());
  q_.Forward(pool, x, rows, queries_.data());
  k_.Forward(pool, x, rows, keys_.data());
  v_.Forward(pool, x, rows, values_.data());

  blocks_.clear();
  rows_.resize(rows);
  int64_t most_keys = 0;
  for (const RowGroup& group : groups) {
    most_keys = std::max(most_keys, group.cache->length() + group.rows);
    for (int64_t i = 0; i < group.rows; ++i) rows_[group.first_row + i] = {&group, i};
    for (int64_t first = 0; first < group.rows; first += kRowsPerBlock) {
      const int64_t count = std::min(kRowsPerBlock, group.rows - first);
      for (int head = 0; head < heads_; ++head) blocks_.push_back({&group, first, count, head});
    }
  }
  scores_.resize(pool->num_threads());
  for (auto& scores : scores_) {
    scores.resize(std::min(kRowsPerBlock, rows) * (most_keys + kPanelWidth));
  }
  pool->Run((rows + kRowsPerBlock - 1) / kRowsPerBlock, [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * kRowsPerBlock);
    for (int64_t row = index * kRowsPerBlock; row < end; ++row) {
      Prepare(*rows_[row].first, rows_[row].second);
    }
  });
  pool->Run(static_cast<int64_t>(blocks_.size()),
            [&](int64_t index, int worker) { Attend(blocks_[index], &scores_[worker]); });
  o_.Forward(pool, mixed_.data(), rows, out);
}

// Normalizes, clips and rotates one row's queries and keys, and stores its keys and values.
void Attention::Prepare(const RowGroup& group, int64_t index) {
  const int64_t row = group.first_row + index;
  const int64_t position = group.cache->length() + index;
  float* q = queries_.data() + row * q_.out();
  float* k = keys_.data() + row * k_.out();
  float* v = values_.data() + row * k_.out();
  if (qk_norm_ == QkNorm::kFull) {
    q_norm_.Apply(q, q);
    k_norm_.Apply(k, k);
  }
  if (clip_ > 0.0f) {
    for (int64_t i = 0; i < q_.out(); ++i) q[i] = std::clamp(q[i], -clip_, clip_);
    for (int64_t i = 0; i < k_.out(); ++i) k[i] = std::clamp(k[i], -clip_, clip_);
    for (int64_t i = 0; i < k_.out(); ++i) v[i] = std::clamp(v[i], -clip_, clip_);
  }
  const int set = rope_->SetOf(group.cache->max_tokens());
  for (int head = 0; head < heads_; ++head) {
    float* h = q + head * head_dim_;
    if (qk_norm_ == QkNorm::kPerHead) q_norm_.Apply(h, h);
    rope_->Rotate(set, position, h);
  }
  for (int head = 0; head < kv_heads_; ++head) {
    float* h = k + head * head_dim_;
    if (qk_norm_ == QkNorm::kPerHead) k_norm_.Apply(h, h);
    rope_->Rotate(set, position, h);
    group.cache->Store(layer_, head, position, h, v + head * head_dim_);
  }
}

void Attention::Attend(const Block& block, AlignedVector<float>* scratch) {
  const KvCache& cache = *block.group->cache;
  const int64_t first_row = block.group->first_row + block.first;
  const int64_t first_position = cache.length() + block.first;
  const int64_t num_keys = first_position + block.rows;  // what the block's last row sees
  const int64_t padded = (num_keys + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  const int kv_head = block.head / (heads_ / kv_heads_);
  float* const scores = scratch->data();

  PanelGemm g{};
  g.x = queries_.data() + first_row * q_.out() + block.head * head_dim_;
  g.x_stride = q_.out();
  g.rows = block.rows;
  g.k = head_dim_;
  g.panels = cache.keys(layer_, kv_head);
  g.panel_stride = cache.key_panel_stride();
  g.num_panels = padded / kPanelWidth;
  g.y = scores;
  g.y_stride = padded;
  Panel().f32(g);

  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  for (int64_t r = 0; r < block.rows; ++r) {
    float* s = scores + r * padded;
    const int64_t end = first_position + r + 1;
    const int64_t begin = window_ > 0 ? std::max<int64_t>(0, end - window_) : 0;
    float max = s[begin];
    for (int64_t i = begin; i < end; ++i) max = std::max(max, s[i]);
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      s[i] = std::exp((s[i] - max) * scale);
      sum += s[i];
    }
    const float inverse = static_cast<float>(1.0 / sum);
    for (int64_t i = begin; i < end; ++i) s[i] *= inverse;
    // A probability of 0 leaves the sums below as they are: masked keys cost time, never bits.
    std::fill(s, s + begin, 0.0f);
    std::fill(s + end, s + num_keys, 0.0f);
  }

  g.x = scores;
  g.x_stride = padded;
  g.k = num_keys;
  g.panels = cache.values(layer_, kv_head);
  g.panel_stride = cache.value_panel_stride();
  g.num_panels = head_dim_ / kPanelWidth;
  g.y = mixed_.data() + first_row * q_.out() + block.head * head_dim_;
  g.y_stride = q_.out();
  Panel().f32(g);
}

}  // namespace moert::host
