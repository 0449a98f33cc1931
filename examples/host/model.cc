#include "host/model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "host/blocks/panel_gemm.h"
#include "host/sampling.h"
#include "util/rounding.h"
#include "util/status_macros.h"

namespace moert::host {

Decoder::Decoder(const HfConfig& config, ThreadPool* pool, MoeRunner* moe)
    : config_(config), pool_(pool), moe_(moe), rope_(config.rope) {
  if (config.window) window_rope_.emplace(config.window->rope);
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Load(const Checkpoint& checkpoint,
                                                       const HfConfig& config, ThreadPool* pool,
                                                       MoeRunner* moe) {
  std::unique_ptr<Decoder> d(new Decoder(config, pool, moe));
  const std::string &prefix = config.tensor_prefix, &body = config.tensor_body;
  const auto norm = [&](const std::string& name) {
    return Norm::Load(checkpoint, name, config.norm, config.hidden_size,
                      static_cast<float>(config.norm_eps));
  };
  MOERT_ASSIGN_OR_RETURN(d->embedding_,
                         Linear::Load(checkpoint, config.quantization, body + config.embedding_name,
                                      config.vocab_size, config.hidden_size, false));
  if (!config.tie_word_embeddings) {
    MOERT_ASSIGN_OR_RETURN(
        d->head_, Linear::Load(checkpoint, config.quantization, prefix + config.head_name,
                               config.vocab_size, config.hidden_size, config.lm_head_bias));
  }
  MOERT_ASSIGN_OR_RETURN(d->last_streams_,
                         HyperConnection::Load(checkpoint, config, body + "hc_head", true));
  MOERT_ASSIGN_OR_RETURN(d->final_norm_, norm(body + "norm"));
  d->layers_.resize(config.num_hidden_layers);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    MOERT_RETURN_IF_ERROR(d->LoadLayer(checkpoint, i));
  }
  return d;
}

absl::Status Decoder::LoadLayer(const Checkpoint& checkpoint, int index) {
  Layer& layer = layers_[index];
  const std::string name = LayerPrefix(config_, index);
  const auto norm = [&](const std::string& part, Norm* to) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(*to,
                           Norm::Load(checkpoint, name + part, config_.norm, config_.hidden_size,
                                      static_cast<float>(config_.norm_eps)));
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(norm(config_.mixer_norm_name, &layer.mixer_norm));
  MOERT_ASSIGN_OR_RETURN(layer.mixer_streams,
                         HyperConnection::Load(checkpoint, config_, name + "hc_attn", false));
  MOERT_ASSIGN_OR_RETURN(layer.mlp_streams,
                         HyperConnection::Load(checkpoint, config_, name + "hc_ffn", false));
  MOERT_ASSIGN_OR_RETURN(layer.mixer, LoadMixer(checkpoint, config_, index, RopeOf(index)));
  layer.moe_layer = config_.MoeLayerIndex(index);
  if (config_.side_experts) {
    MOERT_ASSIGN_OR_RETURN(layer.beside, SideExperts::Load(checkpoint, config_, index));
    return absl::OkStatus();
  }
  MOERT_RETURN_IF_ERROR(norm(config_.mlp_norm_name, &layer.mlp_norm));
  if (layer.moe_layer >= 0) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(
      layer.mlp, Mlp::Load(checkpoint, config_.quantization, name + config_.dense_block,
                           config_.hidden_size, config_.dense_intermediate, config_.activation));
  return absl::OkStatus();
}

absl::Status Decoder::Step(StepPhase phase, absl::Span<const SequenceInput> inputs,
                           AlignedVector<float>* hidden) {
  MOERT_RETURN_IF_ERROR(CheckInputs(config_, inputs, moe_->max_rows()));
  std::vector<RowGroup> groups;
  std::vector<int64_t> request_ids;
  std::vector<int32_t> tokens;
  int64_t rows = 0, longest = 0;
  for (const SequenceInput& input : inputs) {
    const int64_t added = static_cast<int64_t>(input.tokens.size());
    groups.push_back({static_cast<SequenceState*>(input.cache), rows, added});
    residual_.resize((rows + added) * width());
    Embed(input.tokens, residual_.data() + rows * width());
    request_ids.insert(request_ids.end(), input.tokens.size(), input.request_id);
    tokens.insert(tokens.end(), input.tokens.begin(), input.tokens.end());
    rows += added;
    longest = std::max(longest, input.cache->length() + added);
  }
  ExtendRopes(longest);
  normed_.resize(rows * config_.hidden_size);
  delta_.resize(rows * config_.hidden_size);

  if (!config_.side_experts) {
    moe_->OfferPrediction([this](int moe_layer, const float* partial, float* next_input) {
      return PredictNext(moe_layer, partial, next_input);
    });
  }
  absl::Status status = moe_->BeginStep(phase, {request_ids, tokens});
  moe_->OfferPrediction(nullptr);
  MOERT_RETURN_IF_ERROR(status);
  status = RunLayers(groups, rows);
  status.Update(moe_->EndStep());
  MOERT_RETURN_IF_ERROR(status);

  hidden->resize(rows * config_.hidden_size);
  final_norm_.Forward(pool_, last_streams_.Collapse(pool_, residual_.data(), rows), rows,
                      hidden->data());
  for (const RowGroup& group : groups) group.sequence->Advance(group.rows);
  return absl::OkStatus();
}

bool Decoder::PredictNext(int moe_layer, const float* partial, float* next_input) {
  const int64_t hidden = config_.hidden_size;
  predicted_residual_ = residual_;
  predicted_normed_.resize(rows_ * hidden);
  predicted_delta_.resize(rows_ * hidden);
  float *const residual = predicted_residual_.data(), *const delta = predicted_delta_.data();
  const auto enter = [&](HyperConnection& streams, const Norm& norm, float* normed) {
    norm.Forward(pool_, streams.Collapse(pool_, residual, rows_), rows_, normed);
  };
  size_t i = 0;
  while (layers_[i].moe_layer != moe_layer) ++i;
  layers_[i].mlp_streams.Expand(pool_, partial, rows_, hidden, residual);
  for (++i; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    enter(layer.mixer_streams, layer.mixer_norm, predicted_normed_.data());
    layer.mixer->Forward(pool_, groups_, predicted_normed_.data(), rows_, delta);
    layer.mixer_streams.Expand(pool_, delta, rows_, hidden, residual);
    if (layer.moe_layer >= 0) {
      enter(layer.mlp_streams, layer.mlp_norm, next_input);
      return true;
    }
    enter(layer.mlp_streams, layer.mlp_norm, predicted_normed_.data());
    layer.mlp.Forward(pool_, predicted_normed_.data(), rows_, delta);
    layer.mlp_streams.Expand(pool_, delta, rows_, hidden, residual);
  }
  return false;
}

absl::Status Decoder::RunLayers(absl::Span<const RowGroup> groups, int64_t rows) {
  groups_ = groups;
  rows_ = rows;
  const auto enter = [&](HyperConnection& streams, const Norm& norm) {
    norm.Forward(pool_, streams.Collapse(pool_, residual_.data(), rows), rows, normed_.data());
  };
  const auto leave = [&](const HyperConnection& streams) {
    streams.Expand(pool_, delta_.data(), rows, config_.hidden_size, residual_.data());
  };
  for (Layer& layer : layers_) {
    enter(layer.mixer_streams, layer.mixer_norm);
    layer.mixer->Forward(pool_, groups, normed_.data(), rows, delta_.data());
    if (!layer.beside.empty()) {
      layer.beside.AddMixed(pool_, rows, delta_.data(), residual_.data());
      MOERT_RETURN_IF_ERROR(
          layer.beside.Forward(pool_, moe_, layer.moe_layer, rows, residual_.data()));
      continue;
    }
    leave(layer.mixer_streams);
    enter(layer.mlp_streams, layer.mlp_norm);
    if (layer.moe_layer >= 0) {
      MOERT_RETURN_IF_ERROR(moe_->Forward(layer.moe_layer, normed_.data(), rows, delta_.data()));
    } else {
      layer.mlp.Forward(pool_, normed_.data(), rows, delta_.data());
    }
    leave(layer.mlp_streams);
  }
  return absl::OkStatus();
}

const Rope* Decoder::RopeOf(int layer) const {
  const bool own = window_rope_ && config_.mixers[layer].kind == MixerKind::kWindow;
  return own ? &*window_rope_ : &rope_;
}

void Decoder::ExtendRopes(int64_t length) {
  rope_.Extend(length);
  if (window_rope_) window_rope_->Extend(length);
}

void Decoder::Embed(absl::Span<const int32_t> tokens, float* residual) const {
  const int64_t hidden = config_.hidden_size;
  const auto scale = static_cast<float>(config_.embedding_scale);
  for (size_t i = 0; i < tokens.size(); ++i) {
    float* const row = residual + static_cast<int64_t>(i) * width();
    embedding_.Row(tokens[i], row);
    if (scale != 1) std::for_each_n(row, hidden, [scale](float& x) { x *= scale; });
    for (int64_t at = hidden; at < width(); at += hidden) std::copy_n(row, hidden, row + at);
  }
}

void Decoder::UseDevice(DeviceProducts* device) {
  for (Layer& layer : layers_) {
    layer.mixer->UseDevice(device);
    layer.mlp.UseDevice(device);
    layer.beside.UseDevice(device);
  }
  (head_.empty() ? embedding_ : head_).UseDevice(device);
}

std::unique_ptr<SequenceState> Decoder::MakeLayerSequence(int layer, int64_t max_tokens) const {
  const int64_t capacity = util::RoundUp(max_tokens, kPanelWidth);
  std::vector<std::unique_ptr<LayerState>> states(layers_.size());
  states[layer] = layers_[layer].mixer->NewState(capacity);
  return std::make_unique<SequenceState>(max_tokens, capacity, std::move(states));
}

void Decoder::AttentionHalf(int layer, absl::Span<const std::unique_ptr<SequenceState>> scratch,
                            int64_t rows, float* residual, float* normed) {
  Layer& l = layers_[layer];
  std::vector<RowGroup> groups;
  int64_t all = 0;
  for (const auto& sequence : scratch) {
    groups.push_back({sequence.get(), all, rows});
    all += rows;
  }
  ExtendRopes(rows);
  delta_.resize(all * config_.hidden_size);
  l.mixer_norm.Forward(pool_, residual, all, normed);
  l.mixer->Forward(pool_, groups, normed, all, delta_.data());
  constexpr int64_t kRowsAJob = 64;
  pool_->Run((all + kRowsAJob - 1) / kRowsAJob, [&](int64_t job, int) {
    const int64_t end = std::min(all, (job + 1) * kRowsAJob) * config_.hidden_size;
    for (int64_t i = job * kRowsAJob * config_.hidden_size; i < end; ++i) residual[i] += delta_[i];
  });
  l.mlp_norm.Forward(pool_, residual, all, normed);
}

void Decoder::DenseHalf(int layer, int64_t rows, const float* normed, float* residual) {
  delta_.resize(rows * config_.hidden_size);
  layers_[layer].mlp.Forward(pool_, normed, rows, delta_.data());
  for (size_t i = 0; i < delta_.size(); ++i) residual[i] += delta_[i];
}

void Decoder::FinishHidden(int64_t rows, const float* residual, float* hidden) {
  final_norm_.Forward(pool_, residual, rows, hidden);
}

void Decoder::Logits(const float* hidden, int64_t rows, float* logits) const {
  (head_.empty() ? embedding_ : head_).Forward(pool_, hidden, rows, logits);
  if (config_.logit_cap == 0) return;
  const auto cap = static_cast<float>(config_.logit_cap);
  pool_->Run(rows, [&](int64_t row, int) {
    float* const x = logits + row * config_.vocab_size;
    for (int64_t i = 0; i < config_.vocab_size; ++i) x[i] = cap * std::tanh(x[i] / cap);
  });
}

std::unique_ptr<SequenceState> Decoder::MakeSequence(int64_t max_tokens) const {
  const int64_t capacity = util::RoundUp(max_tokens, kPanelWidth);
  std::vector<std::unique_ptr<LayerState>> states;
  for (const Layer& layer : layers_) states.push_back(layer.mixer->NewState(capacity));
  return std::make_unique<SequenceState>(max_tokens, capacity, std::move(states));
}

absl::Status Decoder::Run(StepPhase phase, absl::Span<const SequenceInput> inputs) {
  return Step(phase, inputs, &hidden_);
}

absl::Status Decoder::RowLogits(int64_t first, int64_t rows, float* logits) {
  Logits(hidden_.data() + first * config_.hidden_size, rows, logits);
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Decoder::Best(int64_t row) {
  AlignedVector<float> logits(config_.vocab_size);
  MOERT_RETURN_IF_ERROR(RowLogits(row, 1, logits.data()));
  return ArgMax(logits);
}

absl::Status Decoder::Score(int64_t first, absl::Span<const int32_t> targets, double* nll) {
  const int64_t vocab = config_.vocab_size, rows = static_cast<int64_t>(targets.size());
  // In blocks, so that the logits of a long window and a large vocabulary need not be in memory at
  // once.
  const int64_t block = std::clamp<int64_t>((int64_t{1} << 22) / vocab, 8, 512);
  AlignedVector<float> logits(std::min(rows, block) * vocab);
  for (int64_t at = 0; at < rows; at += block) {
    const int64_t count = std::min(block, rows - at);
    MOERT_RETURN_IF_ERROR(RowLogits(first + at, count, logits.data()));
    pool_->Run(count, [&](int64_t i, int) {
      const float* row = logits.data() + i * vocab;
      nll[at + i] = LogSumExp({row, static_cast<size_t>(vocab)}) - row[targets[at + i]];
    });
  }
  return absl::OkStatus();
}

}  // namespace moert::host
