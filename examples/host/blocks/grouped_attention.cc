#include "host/blocks/grouped_attention.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "host/blocks/indexed_panels.h"
#include "host/blocks/kv_panels.h"
#include "host/blocks/row_jobs.h"
#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<std::unique_ptr<Mixer>> GroupedAttention::Load(const Checkpoint& checkpoint,
                                                              const HfConfig& config, int layer,
                                                              const Rope* rope) {
  auto a = std::make_unique<GroupedAttention>();
  a->layer_ = layer;
  a->heads_ = config.num_attention_heads;
  a->kv_heads_ = config.KvHeads(layer);
  a->head_dim_ = config.HeadDim(layer);
  a->value_dim_ = config.ValueDim(layer);
  MOERT_RETURN_IF_ERROR(CheckPanels("head_dim", a->head_dim_));
  MOERT_RETURN_IF_ERROR(CheckPanels("v_head_dim", a->value_dim_));
  a->query_stride_ = config.attention_gate ? 2 * a->head_dim_ : a->head_dim_;
  a->clip_ = static_cast<float>(config.clip_qkv);
  a->value_scale_ = static_cast<float>(config.value_scale);
  a->value_norm_ = config.value_norm;
  a->rotate_ = config.mixers[layer].rotate;
  a->temperature_ = config.temperature;
  a->rope_ = rope;
  const std::string name = LayerPrefix(config, layer) + "self_attn.";
  const auto load = [&](const char* part, int64_t out, int64_t in, bool bias) {
    return Linear::Load(checkpoint, config.quantization, name + part, out, in, bias);
  };
  const int64_t hidden = config.hidden_size, values = a->heads_ * a->value_dim_;
  const bool bias = config.qkv_bias;
  MOERT_ASSIGN_OR_RETURN(a->q_, load("q_proj", a->heads_ * a->query_stride_, hidden, bias));
  MOERT_ASSIGN_OR_RETURN(a->k_, load("k_proj", a->kv_heads_ * a->head_dim_, hidden, bias));
  if (config.HasValues(layer)) {
    MOERT_ASSIGN_OR_RETURN(a->v_, load("v_proj", a->kv_heads_ * a->value_dim_, hidden, bias));
  }
  MOERT_ASSIGN_OR_RETURN(a->o_, load("o_proj", hidden, values, config.attention_output_bias));
  MOERT_RETURN_IF_ERROR(a->LoadNorms(checkpoint, config, name));
  Attend::Shape shape;
  shape.layer = layer;
  shape.heads = a->heads_;
  shape.kv_heads = a->kv_heads_;
  shape.key_dim = a->head_dim_;
  shape.value_dim = a->value_dim_;
  shape.head_stride = a->query_stride_;
  shape.scale = static_cast<float>(config.attention_scale);
  shape.mixer = config.mixers[layer];
  if (config.HasSinks(layer)) {
    MOERT_ASSIGN_OR_RETURN(shape.sinks, checkpoint.ReadF32(name + config.sinks_name, {a->heads_}));
  }
  if (config.indexer.block_size > 0 && !config.mixers[layer].ignores_index) {
    shape.chooser = layer;
    MOERT_ASSIGN_OR_RETURN(a->indexer_, BlockIndexer::Load(checkpoint, config, layer, name, rope));
  }
  a->attend_ = Attend(std::move(shape));
  return a;
}

absl::Status GroupedAttention::LoadNorms(const Checkpoint& checkpoint, const HfConfig& config,
                                         const std::string& name) {
  qk_norm_ = config.qk_norm;
  eps_ = static_cast<float>(config.norm_eps);
  if (qk_norm_ == QkNorm::kNone || qk_norm_ == QkNorm::kPerHeadL2) return absl::OkStatus();
  const NormKind kind = config.norm == NormKind::kRmsOffset ? NormKind::kRmsOffset : NormKind::kRms;
  const auto norm = [&](const char* part, int heads) {
    const int64_t width = (qk_norm_ == QkNorm::kFull ? heads : 1) * head_dim_;
    return Norm::Load(checkpoint, name + part, kind, width, static_cast<float>(config.norm_eps));
  };
  const bool rotated = qk_norm_ == QkNorm::kPerHeadRotated;
  MOERT_ASSIGN_OR_RETURN(q_norm_, norm(rotated ? "query_layernorm" : "q_norm", heads_));
  MOERT_ASSIGN_OR_RETURN(k_norm_, norm(rotated ? "key_layernorm" : "k_norm", kv_heads_));
  return absl::OkStatus();
}

std::unique_ptr<LayerState> GroupedAttention::NewState(int64_t capacity) const {
  if (indexer_.empty()) {
    return std::make_unique<KvPanels>(kv_heads_, head_dim_, value_dim_, capacity);
  }
  return std::make_unique<IndexedPanels>(kv_heads_, head_dim_, value_dim_, indexer_.key_dim(),
                                         indexer_.block_size(), capacity);
}

void GroupedAttention::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                               int64_t rows, float* out) {
  queries_.resize(rows * q_.out());
  mixed_.resize(rows * o_.in());
  keys_.resize(rows * k_.out());
  values_.resize(rows * kv_heads_ * value_dim_);
  q_.Forward(pool, x, rows, queries_.data());
  k_.Forward(pool, x, rows, keys_.data());
  if (v_.empty()) {
    std::copy_n(keys_.begin(), values_.size(), values_.begin());
  } else {
    v_.Forward(pool, x, rows, values_.data());
  }
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) { Prepare(group, index); });
  if (!indexer_.empty()) indexer_.Forward(pool, groups, x, rows);
  attend_.Forward(pool, groups, queries_.data(), mixed_.data());
  if (query_stride_ > head_dim_) {
    ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) {
      const int64_t row = group.first_row + index;
      for (int head = 0; head < heads_; ++head) {
        const float* gate = queries_.data() + row * q_.out() + head * query_stride_ + head_dim_;
        float* y = mixed_.data() + row * o_.in() + head * head_dim_;
        for (int64_t i = 0; i < head_dim_; ++i) y[i] /= 1.0f + std::exp(-gate[i]);
      }
    });
  }
  o_.Forward(pool, mixed_.data(), rows, out);
}

// Normalizes, clips and rotates one row's queries and keys, and stores its keys and values.
void GroupedAttention::Prepare(const RowGroup& group, int64_t index) {
  const int64_t row = group.first_row + index;
  const int64_t position = group.sequence->length() + index;
  float* q = queries_.data() + row * q_.out();
  float* k = keys_.data() + row * k_.out();
  const int64_t values = kv_heads_ * value_dim_;
  float* v = values_.data() + row * values;
  if (qk_norm_ == QkNorm::kFull) {
    q_norm_.Apply(q, q);
    k_norm_.Apply(k, k);
  }
  if (clip_ > 0.0f) {
    Clip(q, q_.out());
    Clip(k, k_.out());
    Clip(v, values);
  }
  if (value_scale_ != 1.0f) {
    for (int64_t i = 0; i < values; ++i) v[i] *= value_scale_;
  }
  const int set = rope_->SetOf(group.sequence->max_tokens());
  for (int head = 0; head < heads_; ++head) {
    Finish(q_norm_, set, position, q + head * query_stride_);
  }
  if (!rotate_ && temperature_.scale != 0) {
    const double steps = std::floor((static_cast<double>(position) + 1) / temperature_.floor);
    const auto warm = static_cast<float>(1 + temperature_.scale * std::log1p(steps));
    for (int64_t i = 0; i < q_.out(); ++i) q[i] *= warm;
  }
  auto* const cache = static_cast<KvPanels*>(group.sequence->layer(layer_));
  for (int head = 0; head < kv_heads_; ++head) {
    float* h = k + head * head_dim_;
    Finish(k_norm_, set, position, h);
    if (value_norm_) NormalizeL2(value_dim_, eps_, v + head * value_dim_);
    cache->Store(head, position, h, v + head * value_dim_);
  }
}

void GroupedAttention::Clip(float* x, int64_t n) const {
  for (int64_t i = 0; i < n; ++i) x[i] = std::clamp(x[i], -clip_, clip_);
}

void GroupedAttention::Finish(const Norm& norm, int set, int64_t position, float* head) const {
  if (qk_norm_ == QkNorm::kPerHead) norm.Apply(head, head);
  if (!rotate_) return;
  rope_->Rotate(set, position, head);
  if (qk_norm_ == QkNorm::kPerHeadL2) NormalizeL2(head_dim_, eps_, head);
  if (qk_norm_ == QkNorm::kPerHeadRotated) norm.Apply(head, head);
}

}  // namespace moert::host
