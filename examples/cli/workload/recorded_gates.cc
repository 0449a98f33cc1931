#include "cli/workload/recorded_gates.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fmt/format.h"

namespace moert::cli {
namespace {

// Scores below it are as good as none, and their logarithms would drown the others.
constexpr float kLeastScore = 1e-7f;

absl::Status Check(const MoeModelSpec& model) {
  int64_t experts = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    experts += layer.num_experts;
    if (layer.routing.kind != RoutingKind::kSoftmaxTopK || layer.routing.selection_bias) {
      return absl::InvalidArgumentError(
          "recorded routing over another shape: legal is routing by softmax_topk without a "
          "selection bias");
    }
    if (layer.hidden != model.layers.front().hidden) {
      return absl::InvalidArgumentError(
          "recorded routing over another shape: layers differ in hidden size");
    }
  }
  if (experts > model.layers.front().hidden) {
    return absl::InvalidArgumentError(
        fmt::format("recorded routing over another shape: {} experts in all layers, legal are at "
                    "most as many as hidden states have channels, {}",
                    experts, model.layers.front().hidden));
  }
  return absl::OkStatus();
}

// Row `index` of the orthonormal cosine basis (DCT-II).
std::vector<float> CosineRow(int64_t index, int64_t size) {
  std::vector<float> row(size);
  const double scale = std::sqrt((index == 0 ? 1.0 : 2.0) / static_cast<double>(size));
  for (int64_t i = 0; i < size; ++i) {
    const double angle = std::numbers::pi * (static_cast<double>(i) + 0.5) *
                         static_cast<double>(index) / static_cast<double>(size);
    row[i] = static_cast<float>(scale * std::cos(angle));
  }
  return row;
}

}  // namespace

absl::StatusOr<RecordedGates> RecordedGates::Create(const MoeModelSpec& model) {
  if (absl::Status status = Check(model); !status.ok()) return status;
  RecordedGates gates;
  gates.hidden_ = model.layers.front().hidden;
  gates.first_.push_back(0);
  for (const MoeLayerSpec& layer : model.layers) {
    gates.first_.push_back(gates.first_.back() + layer.num_experts);
  }
  for (int64_t i = 0; i < gates.first_.back(); ++i) {
    gates.rows_.push_back(CosineRow(i, gates.hidden_));
  }
  return gates;
}

std::vector<float> RecordedGates::Gate(int layer) const {
  std::vector<float> gate;
  for (int64_t e = first_[layer]; e < first_[layer + 1]; ++e) {
    gate.insert(gate.end(), rows_[e].begin(), rows_[e].end());
  }
  return gate;
}

std::vector<float> RecordedGates::Hidden(int layer, int64_t rows, absl::Span<const float> scores,
                                         absl::Span<const float> next_scores) const {
  std::vector<float> out(rows * hidden_);
  const int64_t experts = first_[layer + 1] - first_[layer];
  for (int64_t t = 0; t < rows; ++t) {
    Add(layer, scores.data() + t * experts, out.data() + t * hidden_);
    if (layer + 2 == static_cast<int>(first_.size()) || next_scores.empty()) continue;
    const int64_t next = first_[layer + 2] - first_[layer + 1];
    Add(layer + 1, next_scores.data() + t * next, out.data() + t * hidden_);
  }
  return out;
}

// Logits whose softmax is `scores`, their mean taken off: hidden states stay small.
void RecordedGates::Add(int layer, const float* scores, float* out) const {
  const int64_t experts = first_[layer + 1] - first_[layer];
  std::vector<float> logits(experts);
  float mean = 0;
  for (int64_t e = 0; e < experts; ++e) {
    logits[e] = std::log(std::max(scores[e], kLeastScore));
    mean += logits[e] / static_cast<float>(experts);
  }
  for (int64_t e = 0; e < experts; ++e) {
    const std::vector<float>& row = rows_[first_[layer] + e];
    for (int64_t i = 0; i < hidden_; ++i) out[i] += (logits[e] - mean) * row[i];
  }
}

}  // namespace moert::cli
