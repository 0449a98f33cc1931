#include "host/blocks/side_experts.h"

#include <algorithm>
#include <cmath>

#include "host/blocks/mixer.h"
#include "moert/router.h"
#include "util/status_macros.h"

namespace moert::host {

absl::StatusOr<SideExperts> SideExperts::Load(const Checkpoint& checkpoint, const HfConfig& config,
                                              int layer) {
  SideExperts s;
  const MoeLayerSpec& spec = config.moe.layers[config.MoeLayerIndex(layer)];
  const int64_t hidden = config.hidden_size;
  s.hidden_ = hidden;
  s.experts_ = spec.num_experts;
  s.routing_.kind = RoutingKind::kSoftmaxTopK;
  s.routing_.top_k = spec.routing.top_k;
  s.routing_.renormalize = true;
  s.eps_ = static_cast<float>(config.norm_eps);
  const std::string name = LayerPrefix(config, layer);
  const auto norm = [&](const char* part, Norm* to) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(*to, Norm::Load(checkpoint, name + part, config.norm, hidden, s.eps_));
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(norm("post_attention_layernorm", &s.behind_mixer_));
  MOERT_RETURN_IF_ERROR(norm("pre_feedforward_layernorm", &s.before_dense_));
  MOERT_RETURN_IF_ERROR(norm("post_feedforward_layernorm_1", &s.behind_dense_));
  MOERT_RETURN_IF_ERROR(norm("pre_feedforward_layernorm_2", &s.before_experts_));
  MOERT_RETURN_IF_ERROR(norm("post_feedforward_layernorm_2", &s.behind_experts_));
  MOERT_RETURN_IF_ERROR(norm("post_feedforward_layernorm", &s.behind_));
  MOERT_ASSIGN_OR_RETURN(
      s.dense_, Mlp::Load(checkpoint, config.quantization, name + config.dense_block, hidden,
                          config.dense_intermediate, config.activation));
  MOERT_ASSIGN_OR_RETURN(s.router_, Linear::Load(checkpoint, config.quantization,
                                                 name + "router.proj", s.experts_, hidden, false));
  MOERT_ASSIGN_OR_RETURN(s.router_scale_, checkpoint.ReadF32(name + "router.scale", {hidden}));
  const float root = 1.0f / std::sqrt(static_cast<float>(hidden));
  for (float& scale : s.router_scale_) scale *= root;
  MOERT_ASSIGN_OR_RETURN(s.expert_scale_,
                         checkpoint.ReadF32(name + "router.per_expert_scale", {s.experts_}));
  MOERT_ASSIGN_OR_RETURN(const auto scale, checkpoint.ReadF32(name + "layer_scalar", {1}));
  s.layer_scale_ = scale[0];
  return s;
}

void SideExperts::AddMixed(ThreadPool* pool, int64_t rows, float* mixed, float* residual) {
  behind_mixer_.Forward(pool, mixed, rows, mixed);
  for (int64_t i = 0; i < rows * hidden_; ++i) residual[i] += mixed[i];
}

absl::Status SideExperts::RouteRow(int64_t row) {
  int32_t* const ids = ids_.data() + row * routing_.top_k;
  float* const weights = weights_.data() + row * routing_.top_k;
  const auto logits = absl::MakeConstSpan(logits_).subspan(row * experts_, experts_);
  MOERT_RETURN_IF_ERROR(
      RouteToken(routing_, logits, {}, scores_.data() + row * experts_, ids, weights));
  for (int k = 0; k < routing_.top_k; ++k) weights[k] *= expert_scale_[ids[k]];
  return absl::OkStatus();
}

absl::Status SideExperts::Route(ThreadPool* pool, int64_t rows, const float* residual) {
  for (int64_t row = 0; row < rows; ++row) {
    float* const x = normed_.data() + row * hidden_;
    std::copy_n(residual + row * hidden_, hidden_, x);
    NormalizeL2(hidden_, eps_, x);
    for (int64_t i = 0; i < hidden_; ++i) x[i] *= router_scale_[i];
  }
  logits_.resize(rows * experts_);
  scores_.resize(rows * experts_);
  ids_.resize(rows * routing_.top_k);
  weights_.resize(rows * routing_.top_k);
  router_.Forward(pool, normed_.data(), rows, logits_.data());
  for (int64_t row = 0; row < rows; ++row) MOERT_RETURN_IF_ERROR(RouteRow(row));
  return absl::OkStatus();
}

absl::Status SideExperts::Forward(ThreadPool* pool, MoeRunner* moe, int moe_layer, int64_t rows,
                                  float* residual) {
  const int64_t size = rows * hidden_;
  for (auto* scratch : {&normed_, &dense_out_, &expert_out_}) scratch->resize(size);
  before_dense_.Forward(pool, residual, rows, normed_.data());
  dense_.Forward(pool, normed_.data(), rows, dense_out_.data());
  behind_dense_.Forward(pool, dense_out_.data(), rows, dense_out_.data());
  MOERT_RETURN_IF_ERROR(Route(pool, rows, residual));
  before_experts_.Forward(pool, residual, rows, normed_.data());
  MoeRouting routing;
  routing.ids = ids_;
  routing.weights = weights_;
  routing.scores = scores_;
  MOERT_RETURN_IF_ERROR(
      moe->ForwardRouted(moe_layer, normed_.data(), rows, routing, expert_out_.data()));
  behind_experts_.Forward(pool, expert_out_.data(), rows, expert_out_.data());
  for (int64_t i = 0; i < size; ++i) dense_out_[i] += expert_out_[i];
  behind_.Forward(pool, dense_out_.data(), rows, dense_out_.data());
  for (int64_t i = 0; i < size; ++i) residual[i] = (residual[i] + dense_out_[i]) * layer_scale_;
  return absl::OkStatus();
}

}  // namespace moert::host
