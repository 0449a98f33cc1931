#include "host/blocks/gated_delta_net.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "host/blocks/matrix_part.h"
#include "host/blocks/mlp.h"
#include "host/blocks/row_jobs.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

// ln(1 + e^x)
float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// Scales x to length `scale`.
void Normalize(int64_t n, float scale, float* x) {
  constexpr float kEps = 1e-6f;
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float factor = scale / std::sqrt(sum + kEps);
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// One position of one head. The state `from` (null: zeros) is decayed into `to`, both [key_dim,
// value_dim]; `to` is then updated by the rate `beta` to answer `key` with `value`, and read with
// `query`. `delta` is scratch.
struct Position {
  const float *query, *key, *value;
  float decay, beta;
};
void Update(const Position& p, int64_t key_dim, int64_t value_dim, const float* from, float* to,
            float* delta, float* out) {
  std::fill(delta, delta + value_dim, 0.0f);
  std::fill(out, out + value_dim, 0.0f);
  for (int64_t i = 0; i < key_dim; ++i) {
    float* const row = to + i * value_dim;
    if (from == nullptr) {
      std::fill(row, row + value_dim, 0.0f);
      continue;
    }
    const float* const old = from + i * value_dim;
    const float key = p.key[i];
    for (int64_t j = 0; j < value_dim; ++j) {
      const float decayed = old[j] * p.decay;
      row[j] = decayed;
      delta[j] += decayed * key;
    }
  }
  for (int64_t j = 0; j < value_dim; ++j) delta[j] = (p.value[j] - delta[j]) * p.beta;
  for (int64_t i = 0; i < key_dim; ++i) {
    float* const row = to + i * value_dim;
    const float key = p.key[i], query = p.query[i];
    for (int64_t j = 0; j < value_dim; ++j) {
      row[j] += key * delta[j];
      out[j] += row[j] * query;
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Mixer>> GatedDeltaNet::Load(const Checkpoint& checkpoint,
                                                           const HfConfig& config, int layer) {
  auto net = std::make_unique<GatedDeltaNet>();
  const DeltaNetConfig& d = net->sizes_ = config.delta_net;
  net->layer_ = layer;
  net->per_key_ = d.value_heads / d.key_heads;
  net->keys_ = d.key_heads * d.key_dim;
  net->values_ = d.value_heads * d.value_dim;
  net->channels_ = 2 * net->keys_ + net->values_;
  const std::string name = LayerPrefix(config, layer) + "linear_attn.";
  const int64_t hidden = config.hidden_size;
  MOERT_ASSIGN_OR_RETURN(
      net->in_, Linear::Load(checkpoint, config.quantization, DeltaNetParts(d, name), hidden));
  MOERT_ASSIGN_OR_RETURN(net->out_, Linear::Load(checkpoint, config.quantization, name + "out_proj",
                                                 hidden, net->values_, false));
  MOERT_RETURN_IF_ERROR(net->LoadConstants(checkpoint, name, static_cast<float>(config.norm_eps)));
  return net;
}

absl::Status GatedDeltaNet::LoadConstants(const Checkpoint& checkpoint, const std::string& name,
                                          float norm_eps) {
  MOERT_ASSIGN_OR_RETURN(const std::vector<float> kernel,
                         checkpoint.ReadF32(name + "conv1d.weight", {channels_, 1, sizes_.kernel}));
  convolution_.resize(kernel.size());
  for (int64_t c = 0; c < channels_; ++c) {
    for (int64_t t = 0; t < sizes_.kernel; ++t) {
      convolution_[t * channels_ + c] = kernel[c * sizes_.kernel + t];
    }
  }
  MOERT_ASSIGN_OR_RETURN(rate_, checkpoint.ReadF32(name + "A_log", {sizes_.value_heads}));
  for (float& a : rate_) a = std::exp(a);
  MOERT_ASSIGN_OR_RETURN(dt_bias_, checkpoint.ReadF32(name + "dt_bias", {sizes_.value_heads}));
  MOERT_ASSIGN_OR_RETURN(
      norm_, Norm::Load(checkpoint, name + "norm", NormKind::kRms, sizes_.value_dim, norm_eps));
  return absl::OkStatus();
}

std::unique_ptr<LayerState> GatedDeltaNet::NewState(int64_t) const {
  return std::make_unique<DeltaNetState>(values_ * sizes_.key_dim, (sizes_.kernel - 1) * channels_);
}

void GatedDeltaNet::Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                            int64_t rows, float* out) {
  projected_.resize(rows * in_.out());
  convolved_.resize(rows * channels_);
  mixed_.resize(rows * values_);
  in_.Forward(pool, x, rows, projected_.data());
  ForEachRow(pool, groups, [&](const RowGroup& g, int64_t i) { Convolve(g, i); });
  const auto heads = static_cast<int64_t>(sizes_.value_heads);
  pool->Run(static_cast<int64_t>(groups.size()) * heads, [&](int64_t index, int) {
    const RowGroup& group = groups[index / heads];
    if (index % heads == 0) KeepHistory(group);
    Recur(group, static_cast<int>(index % heads));
  });
  ForEachRow(pool, groups, [&](const RowGroup& g, int64_t i) { Gate(g.first_row + i); });
  out_.Forward(pool, mixed_.data(), rows, out);
}

void GatedDeltaNet::Convolve(const RowGroup& group, int64_t index) {
  const int64_t kernel = sizes_.kernel, row = group.first_row + index;
  float* const y = convolved_.data() + row * channels_;
  std::fill(y, y + channels_, 0.0f);
  for (int64_t t = 0; t < kernel; ++t) {
    const int64_t back = kernel - 1 - t;  // positions before this one
    const float* input = Projected(row - back);
    if (back > index) {
      if (group.sequence->length() == 0) continue;
      input = State(group)->history() + (kernel - 1 - (back - index)) * channels_;
    }
    const float* const w = convolution_.data() + t * channels_;
    for (int64_t c = 0; c < channels_; ++c) y[c] += w[c] * input[c];
  }
  for (int64_t c = 0; c < channels_; ++c) y[c] *= Sigmoid(y[c]);
  const float scale = 1.0f / std::sqrt(static_cast<float>(sizes_.key_dim));
  for (int64_t k = 0; k < sizes_.key_heads; ++k) {
    Normalize(sizes_.key_dim, scale, y + k * sizes_.key_dim);
    Normalize(sizes_.key_dim, 1.0f, y + keys_ + k * sizes_.key_dim);
  }
}

void GatedDeltaNet::KeepHistory(const RowGroup& group) {
  const int64_t kept = sizes_.kernel - 1;
  const bool fresh = group.sequence->length() == 0;
  float* to = State(group)->next_history();
  for (int64_t i = group.rows - kept; i < group.rows; ++i, to += channels_) {
    if (i >= 0) {
      std::copy_n(Projected(group.first_row + i), channels_, to);
    } else if (fresh) {
      std::fill_n(to, channels_, 0.0f);
    } else {
      std::copy_n(State(group)->history() + (kept + i) * channels_, channels_, to);
    }
  }
}

void GatedDeltaNet::Recur(const RowGroup& group, int head) {
  const int64_t key_dim = sizes_.key_dim, value_dim = sizes_.value_dim;
  const int key_head = head / per_key_;
  const float* from = State(group)->recurrent() + head * key_dim * value_dim;
  float* const to = State(group)->next_recurrent() + head * key_dim * value_dim;
  if (group.sequence->length() == 0) from = nullptr;
  std::vector<float> delta(value_dim);
  for (int64_t row = group.first_row; row < group.first_row + group.rows; ++row) {
    const float* y = convolved_.data() + row * channels_;
    const float* betas = Projected(row) + channels_ + values_;
    Position p;
    p.query = y + key_head * key_dim;
    p.key = y + keys_ + key_head * key_dim;
    p.value = y + 2 * keys_ + head * value_dim;
    p.beta = Sigmoid(betas[head]);
    p.decay = std::exp(-rate_[head] * Softplus(betas[sizes_.value_heads + head] + dt_bias_[head]));
    Update(p, key_dim, value_dim, from, to, delta.data(),
           mixed_.data() + row * values_ + head * value_dim);
    from = to;
  }
}

void GatedDeltaNet::Gate(int64_t row) {
  for (int head = 0; head < sizes_.value_heads; ++head) {
    float* const y = mixed_.data() + row * values_ + head * sizes_.value_dim;
    const float* const gate = Projected(row) + channels_ + head * sizes_.value_dim;
    norm_.Apply(y, y);
    for (int64_t j = 0; j < sizes_.value_dim; ++j) y[j] *= gate[j] * Sigmoid(gate[j]);
  }
}

}  // namespace moert::host
