#include "host/blocks/compressed_attention.h"

#include <utility>

#include "host/blocks/compressed_state.h"
#include "host/blocks/panel_gemm.h"
#include "host/blocks/row_jobs.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<std::unique_ptr<Mixer>> CompressedAttention::Load(const Checkpoint& checkpoint,
                                                                 const HfConfig& config, int layer,
                                                                 const Rope* rope) {
  MOERT_RETURN_IF_ERROR(CheckPanels("head_dim", config.head_dim));
  MOERT_RETURN_IF_ERROR(CheckPanels("o_lora_rank", config.compressed.group_rank));
  auto a = std::make_unique<CompressedAttention>();
  a->layer_ = layer;
  a->heads_ = config.num_attention_heads;
  a->head_dim_ = config.head_dim;
  a->sizes_ = config.compressed;
  a->eps_ = static_cast<float>(config.norm_eps);
  a->rope_ = rope;
  const std::string name = LayerPrefix(config, layer) + "attn.";
  MOERT_RETURN_IF_ERROR(a->LoadProjections(checkpoint, config, name));
  const MixerConfig& mixer = config.mixers[layer];
  AttendEntries::Shape shape;
  shape.layer = layer;
  shape.heads = a->heads_;
  shape.dim = a->head_dim_;
  shape.span = mixer.span;
  shape.rate = mixer.rate;
  shape.scale = static_cast<float>(config.attention_scale);
  MOERT_ASSIGN_OR_RETURN(shape.sinks, checkpoint.ReadF32(name + config.sinks_name, {a->heads_}));
  if (mixer.kind == MixerKind::kCompressed) {
    MOERT_RETURN_IF_ERROR(a->LoadEntries(checkpoint, config, name));
    shape.chooses = !a->indexer_.empty();
  }
  a->attend_ = AttendEntries(std::move(shape));
  return a;
}

absl::Status CompressedAttention::LoadProjections(const Checkpoint& checkpoint,
                                                  const HfConfig& config, const std::string& name) {
  const int64_t hidden = config.hidden_size, channels = heads_ * head_dim_;
  const auto linear = [&](const char* part, int64_t out, int64_t in, Linear* to) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(
        *to, Linear::Load(checkpoint, config.quantization, name + part, out, in, false));
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(linear("wq_a", sizes_.q_rank, hidden, &q_down_));
  MOERT_RETURN_IF_ERROR(linear("wq_b", channels, sizes_.q_rank, &q_));
  MOERT_RETURN_IF_ERROR(linear("wkv", head_dim_, hidden, &kv_));
  MOERT_RETURN_IF_ERROR(linear("wo_b", hidden, sizes_.groups * sizes_.group_rank, &o_));
  const HeadLinear::Part part{sizes_.groups, sizes_.group_rank, 0, sizes_.group_rank,
                              channels / sizes_.groups};
  MOERT_ASSIGN_OR_RETURN(
      o_down_, HeadLinear::Load(checkpoint, config.quantization, name + "wo_a", part, false));
  MOERT_ASSIGN_OR_RETURN(q_norm_,
                         Norm::Load(checkpoint, name + "q_norm", config.norm, sizes_.q_rank, eps_));
  MOERT_ASSIGN_OR_RETURN(kv_norm_,
                         Norm::Load(checkpoint, name + "kv_norm", config.norm, head_dim_, eps_));
  return absl::OkStatus();
}

absl::Status CompressedAttention::LoadEntries(const Checkpoint& checkpoint, const HfConfig& config,
                                              const std::string& name) {
  const MixerConfig& mixer = config.mixers[layer_];
  const Compressor::Shape shape{mixer.rate, !mixer.ignores_index, head_dim_, sizes_.rope_dim};
  MOERT_ASSIGN_OR_RETURN(compressor_,
                         Compressor::Load(checkpoint, config, name + "compressor.", shape, rope_));
  if (mixer.ignores_index) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(
      indexer_, LightningIndexer::Load(checkpoint, config, layer_, name + "indexer.", rope_));
  return absl::OkStatus();
}

std::unique_ptr<LayerState> CompressedAttention::NewState(int64_t capacity) const {
  const int64_t entries =
      compressor_.empty() ? 0 : util::RoundUp(capacity / compressor_.rate(), kPanelWidth);
  auto state = std::make_unique<CompressedState>(
      head_dim_, indexer_.empty() ? 0 : indexer_.key_dim(), capacity, entries);
  if (!compressor_.empty()) state->tail() = compressor_.NewTail();
  if (!indexer_.empty()) state->index_tail() = indexer_.NewTail();
  return state;
}

void CompressedAttention::UseDevice(DeviceProducts* device) {
  for (Linear* linear : {&q_down_, &q_, &kv_, &o_}) linear->UseDevice(device);
  compressor_.UseDevice(device);
  indexer_.UseDevice(device);
}

void CompressedAttention::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups,
                                  const float* x, int64_t rows, float* out) {
  latents_.resize(rows * sizes_.q_rank);
  q_down_.Forward(pool, x, rows, latents_.data());
  q_norm_.Forward(pool, latents_.data(), rows, latents_.data());
  queries_.resize(rows * q_.out());
  q_.Forward(pool, latents_.data(), rows, queries_.data());
  keys_.resize(rows * head_dim_);
  kv_.Forward(pool, x, rows, keys_.data());
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) { Prepare(group, index); });
  if (!compressor_.empty()) StoreEntries(pool, groups, x, rows);
  if (!indexer_.empty()) indexer_.Forward(pool, groups, x, latents_.data(), rows);
  mixed_.resize(rows * q_.out());
  attend_.Forward(pool, groups, queries_.data(), mixed_.data());
  ForEachRow(pool, groups, [&](const RowGroup& group, int64_t index) { RotateBack(group, index); });
  groups_.resize(rows * o_.in());
  o_down_.Forward(pool, mixed_.data(), q_.out() / sizes_.groups, rows, groups_.data(),
                  sizes_.group_rank);
  o_.Forward(pool, groups_.data(), rows, out);
}

// Normalizes and rotates one row's queries and its key, and stores the key.
void CompressedAttention::Prepare(const RowGroup& group, int64_t index) {
  const int64_t row = group.first_row + index;
  const int64_t position = group.sequence->length() + index;
  const int64_t rotated = head_dim_ - sizes_.rope_dim;
  const int set = rope_->SetOf(group.sequence->max_tokens());
  for (int head = 0; head < heads_; ++head) {
    float* const query = queries_.data() + row * q_.out() + head * head_dim_;
    NormalizeL2(head_dim_, eps_, query);
    rope_->Rotate(set, position, query + rotated);
  }
  float* const key = keys_.data() + row * head_dim_;
  kv_norm_.Apply(key, key);
  rope_->Rotate(set, position, key + rotated);
  CompressedStateOf(group, layer_).Store(0, position, key, key);
}

void CompressedAttention::StoreEntries(ThreadPool* pool, absl::Span<const RowGroup> groups,
                                       const float* x, int64_t rows) {
  compressor_.Forward(
      pool, groups, x, rows,
      [&](const RowGroup& group) -> CompressorTail& {
        return CompressedStateOf(group, layer_).tail();
      },
      [&](const RowGroup& group, int64_t entry, const float* values) {
        CompressedStateOf(group, layer_).entries().Store(0, entry, values, values);
      });
}

void CompressedAttention::RotateBack(const RowGroup& group, int64_t index) {
  const int64_t position = group.sequence->length() + index;
  const int set = rope_->SetOf(group.sequence->max_tokens());
  float* const mixed = mixed_.data() + (group.first_row + index) * q_.out();
  for (int head = 0; head < heads_; ++head) {
    rope_->RotateBack(set, position, mixed + (head + 1) * head_dim_ - sizes_.rope_dim);
  }
}

}  // namespace moert::host
