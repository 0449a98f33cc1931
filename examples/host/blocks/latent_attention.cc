#include "host/blocks/latent_attention.h"

#include <algorithm>
#include <string>
#include <utility>

#include "host/blocks/indexed_panels.h"
#include "host/blocks/kv_panels.h"
#include "host/blocks/row_jobs.h"
#include "util/status_macros.h"

namespace moert::host {

namespace {

// The layer whose indexer chooses for this one; -1: none does.
int ChooserOf(const HfConfig& config, int layer) {
  if (config.indexer.heads == 0) return -1;
  while (config.mixers[layer].shares_index) --layer;
  return layer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> LatentAttention::Load(const Checkpoint& checkpoint,
                                                             const HfConfig& config, int layer,
                                                             const Rope* rope) {
  const LatentAttentionConfig& l = config.latent;
  MOERT_RETURN_IF_ERROR(CheckPanels("kv_lora_rank", l.kv_rank));
  MOERT_RETURN_IF_ERROR(CheckPanels("v_head_dim", l.value_dim));
  auto a = std::make_unique<LatentAttention>();
  a->layer_ = layer;
  a->heads_ = config.num_attention_heads;
  a->sizes_ = l;
  a->rope_ = rope;
  const std::string name = LayerPrefix(config, layer) + "self_attn.";
  MOERT_RETURN_IF_ERROR(a->LoadQueries(checkpoint, config, name));
  MOERT_ASSIGN_OR_RETURN(a->kv_down_,
                         Linear::Load(checkpoint, config.quantization, name + "kv_a_proj_with_mqa",
                                      l.kv_rank + l.rope_dim, config.hidden_size, config.qkv_bias));
  MOERT_ASSIGN_OR_RETURN(a->kv_norm_, Norm::Load(checkpoint, name + "kv_a_layernorm",
                                                 NormKind::kRms, l.kv_rank, kLatentEps));
  HeadLinear::Part part{a->heads_, l.nope_dim + l.value_dim, 0, l.nope_dim, l.kv_rank};
  MOERT_ASSIGN_OR_RETURN(
      a->key_, HeadLinear::Load(checkpoint, config.quantization, name + "kv_b_proj", part, true));
  part.first = l.nope_dim;
  part.count = l.value_dim;
  MOERT_ASSIGN_OR_RETURN(a->value_, HeadLinear::Load(checkpoint, config.quantization,
                                                     name + "kv_b_proj", part, false));
  MOERT_ASSIGN_OR_RETURN(
      a->o_, Linear::Load(checkpoint, config.quantization, name + "o_proj", config.hidden_size,
                          a->heads_ * l.value_dim, config.attention_output_bias));
  Attend::Shape shape;
  shape.layer = layer;
  shape.heads = a->heads_;
  shape.kv_heads = 1;
  shape.key_dim = shape.head_stride = l.kv_rank + l.rope_dim;
  shape.value_dim = l.kv_rank;
  shape.scale = static_cast<float>(config.attention_scale);
  shape.mixer = config.mixers[layer];
  shape.chooser = ChooserOf(config, layer);
  if (shape.chooser == layer) {
    MOERT_ASSIGN_OR_RETURN(
        a->indexer_, LightningIndexer::Load(checkpoint, config, layer, name + "indexer.", rope));
  }
  a->attend_ = Attend(std::move(shape));
  return a;
}

absl::Status LatentAttention::LoadQueries(const Checkpoint& checkpoint, const HfConfig& config,
                                          const std::string& name) {
  const int64_t out = heads_ * (sizes_.nope_dim + sizes_.rope_dim), hidden = config.hidden_size;
  if (sizes_.q_rank == 0) {
    MOERT_ASSIGN_OR_RETURN(
        q_, Linear::Load(checkpoint, config.quantization, name + "q_proj", out, hidden, false));
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(q_down_, Linear::Load(checkpoint, config.quantization, name + "q_a_proj",
                                               sizes_.q_rank, hidden, config.qkv_bias));
  MOERT_ASSIGN_OR_RETURN(q_norm_, Norm::Load(checkpoint, name + "q_a_layernorm", NormKind::kRms,
                                             sizes_.q_rank, kLatentEps));
  MOERT_ASSIGN_OR_RETURN(q_, Linear::Load(checkpoint, config.quantization, name + "q_b_proj", out,
                                          sizes_.q_rank, false));
  return absl::OkStatus();
}

std::unique_ptr<LayerState> LatentAttention::NewState(int64_t capacity) const {
  const int64_t key_dim = sizes_.kv_rank + sizes_.rope_dim;
  if (indexer_.empty()) return std::make_unique<KvPanels>(1, key_dim, sizes_.kv_rank, capacity);
  return std::make_unique<IndexedPanels>(1, key_dim, sizes_.kv_rank, indexer_.key_dim(), 1,
                                         capacity);
}

void LatentAttention::ProjectQueries(ThreadPool* pool, const float* x, int64_t rows) {
  queries_.resize(rows * q_.out());
  if (!q_down_.empty()) {
    query_latent_.resize(rows * sizes_.q_rank);
    q_down_.Forward(pool, x, rows, query_latent_.data());
    q_norm_.Forward(pool, query_latent_.data(), rows, query_latent_.data());
    x = query_latent_.data();
  }
  q_.Forward(pool, x, rows, queries_.data());
}

void LatentAttention::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                              int64_t rows, float* out) {
  const int64_t key_dim = sizes_.kv_rank + sizes_.rope_dim;
  ProjectQueries(pool, x, rows);
  if (!indexer_.empty()) indexer_.Forward(pool, groups, x, query_latent_.data(), rows);
  latents_.resize(rows * key_dim);
  kv_down_.Forward(pool, x, rows, latents_.data());
  absorbed_.resize(rows * heads_ * key_dim);
  key_.Forward(pool, queries_.data(), sizes_.nope_dim + sizes_.rope_dim, rows, absorbed_.data(),
               key_dim);
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) { Prepare(group, index); });
  mixed_latents_.resize(rows * heads_ * sizes_.kv_rank);
  attend_.Forward(pool, groups, absorbed_.data(), mixed_latents_.data());
  mixed_.resize(rows * o_.in());
  value_.Forward(pool, mixed_latents_.data(), sizes_.kv_rank, rows, mixed_.data(),
                 sizes_.value_dim);
  o_.Forward(pool, mixed_.data(), rows, out);
}

// Rotates one row's queries and its key, and stores its latent with the key.
void LatentAttention::Prepare(const RowGroup& group, int64_t index) {
  const int64_t row = group.first_row + index;
  const int64_t position = group.sequence->length() + index;
  const int64_t key_dim = sizes_.kv_rank + sizes_.rope_dim;
  const int set = rope_->SetOf(group.sequence->max_tokens());
  float* const latent = latents_.data() + row * key_dim;
  kv_norm_.Apply(latent, latent);
  rope_->Rotate(set, position, latent + sizes_.kv_rank);
  static_cast<KvPanels*>(group.sequence->layer(layer_))->Store(0, position, latent, latent);
  for (int head = 0; head < heads_; ++head) {
    const float* q = queries_.data() + row * q_.out() + head * (sizes_.nope_dim + sizes_.rope_dim) +
                     sizes_.nope_dim;
    float* const absorbed = absorbed_.data() + (row * heads_ + head) * key_dim + sizes_.kv_rank;
    std::copy(q, q + sizes_.rope_dim, absorbed);
    rope_->Rotate(set, position, absorbed);
  }
}

}  // namespace moert::host
