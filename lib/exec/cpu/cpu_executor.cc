#include "exec/cpu/cpu_executor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/rows.h"
#include "moert/thread_pool.h"

namespace moert {

CpuExecutor::CpuExecutor(const ExecutorParts& parts)
    : parts_(parts), all_tokens_(parts.max_tokens), shared_rows_(parts.max_tokens) {
  std::iota(all_tokens_.begin(), all_tokens_.end(), 0);
  int64_t hidden = 0, output_floats = 0, weighted_floats = 0;
  for (const MoeLayerSpec& layer : parts.source->model().layers) {
    hidden = std::max(hidden, layer.hidden);
    output_floats =
        std::max(output_floats, parts.max_tokens * (layer.routing.top_k + 1) * layer.hidden);
    if (layer.routing.weight_input) weighted_floats = output_floats;
  }
  x_ = AlignedArray<float>(parts.max_tokens * hidden);
  y_ = AlignedArray<float>(parts.max_tokens * hidden);
  outputs_ = AlignedArray<float>(output_floats);
  weighted_x_ = AlignedArray<float>(weighted_floats);
  if (!parts.partial_output) return;
  partial_ = AlignedArray<float>(parts.max_tokens * hidden);
  next_input_ = AlignedArray<float>(parts.max_tokens * hidden);
}

absl::Status CpuExecutor::Route(const ExecutorCall& call, const RoutingRequest& request,
                                RoutingResult* routing) {
  WidenRows(call.hidden, x_.data());
  return parts_.router->Route(call.layer, x_.data(), call.tokens, request.rule, request.residency,
                              request.request_ids, request.next_gate, routing, call.token_ids);
}

absl::Status CpuExecutor::SetRouting(const ExecutorCall& call, const RoutingResult& /*routing*/) {
  WidenRows(call.hidden, x_.data());
  return absl::OkStatus();
}

absl::Status CpuExecutor::Multiply(const ExecutorCall& call, const RoutingResult& routing,
                                   absl::Span<const ReadyExpert> experts, bool first) {
  const MoeLayerSpec& spec = Spec(call);
  problems_.clear();
  const bool weighted = spec.routing.weight_input;
  if (weighted && first) WeightInput(call, routing);
  for (const ReadyExpert& ready : experts) {
    const int32_t begin = routing.offsets[ready.expert];
    const int32_t count = routing.counts[ready.expert];
    const auto slots = absl::MakeConstSpan(routing.grouped_slots).subspan(begin, count);
    problems_.push_back(
        {ready.handle.record, ready.handle.layout, spec.activation,
         weighted ? slots : absl::MakeConstSpan(routing.grouped_tokens).subspan(begin, count),
         slots});
  }
  const int64_t pairs = call.tokens * routing.top_k;
  if (first) AddShared(call, pairs);
  return weighted
             ? parts_.gemm->Run(weighted_x_.data(), pairs + call.tokens, spec.hidden, problems_,
                                outputs_.data())
             : parts_.gemm->Run(x_.data(), call.tokens, spec.hidden, problems_, outputs_.data());
}

void CpuExecutor::WeightInput(const ExecutorCall& call, const RoutingResult& routing) {
  const int64_t hidden = Spec(call).hidden, pairs = call.tokens * routing.top_k;
  for (int64_t row = 0; row < pairs + call.tokens; ++row) {
    const bool routed = row < pairs;
    const float weight = routed ? routing.weights[row] : 1;
    const float* from = x_.data() + (routed ? row / routing.top_k : row - pairs) * hidden;
    float* to = weighted_x_.data() + row * hidden;
    for (int64_t i = 0; i < hidden; ++i) to[i] = weight * from[i];
  }
}

void CpuExecutor::AddShared(const ExecutorCall& call, int64_t pairs) {
  const std::byte* record = SharedRecord(call);
  if (record == nullptr) return;
  // One more problem of the grouped product; its rows follow the slots.
  for (int64_t t = 0; t < call.tokens; ++t) shared_rows_[t] = static_cast<int32_t>(pairs + t);
  const auto rows = absl::MakeConstSpan(shared_rows_).first(call.tokens);
  problems_.push_back(
      {record, &parts_.constants->layer(call.layer).shared_layout, Spec(call).activation,
       Spec(call).routing.weight_input ? rows : absl::MakeConstSpan(all_tokens_).first(call.tokens),
       rows});
}

float CpuExecutor::SharedWeight(const ExecutorCall& call, int64_t t) const {
  const std::vector<float>& gate = parts_.constants->layer(call.layer).shared_gate;
  if (gate.empty()) return 1;
  const int64_t hidden = static_cast<int64_t>(gate.size());
  double dot = 0;
  for (int64_t i = 0; i < hidden; ++i) dot += x_[t * hidden + i] * gate[i];
  return static_cast<float>(1 / (1 + std::exp(-dot)));
}

absl::Status CpuExecutor::Combine(const ExecutorCall& call, const RoutingResult& routing) {
  const int64_t tokens = call.tokens;
  const int64_t hidden = Spec(call).hidden;
  const int k = routing.top_k;
  const bool has_shared = SharedRecord(call) != nullptr;
  parts_.pool->Run(tokens, [&](int64_t t, int) {
    const float shared_weight = SharedWeight(call, t);
    float* row = y_.data() + t * hidden;
    // Sums in the order of k, whatever the order in which experts arrived.
    const bool weighted = Spec(call).routing.weight_input;  // the input was weighted instead
    bool empty = true;
    for (int j = 0; j < k; ++j) {
      if (routing.ids[t * k + j] < 0) continue;
      const float weight = weighted ? 1 : routing.weights[t * k + j];
      const float* slot = outputs_.data() + (t * k + j) * hidden;
      if (empty) {
        for (int64_t i = 0; i < hidden; ++i) row[i] = weight * slot[i];
      } else {
        for (int64_t i = 0; i < hidden; ++i) row[i] += weight * slot[i];
      }
      empty = false;
    }
    if (empty) std::fill(row, row + hidden, 0.0f);
    if (has_shared) {
      const float* shared = outputs_.data() + (tokens * k + t) * hidden;
      for (int64_t i = 0; i < hidden; ++i) row[i] += shared_weight * shared[i];
    }
  });
  NarrowRows(y_.data(), call.out);
  return absl::OkStatus();
}

PartialRows CpuExecutor::PartialOutput(const ExecutorCall& call, const RoutingResult& routing,
                                       absl::Span<const uint8_t> computed) {
  const int64_t tokens = call.tokens;
  const int64_t hidden = Spec(call).hidden;
  const int64_t next_hidden = parts_.source->model().layers[call.layer + 1].hidden;
  const int k = routing.top_k;
  const bool has_shared = SharedRecord(call) != nullptr;
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = partial_.data() + t * hidden;
    const float shared_weight = has_shared ? SharedWeight(call, t) : 0;
    const float* shared = outputs_.data() + (tokens * k + t) * hidden;
    for (int64_t i = 0; i < hidden; ++i) row[i] = has_shared ? shared_weight * shared[i] : 0;
    for (int j = 0; j < k; ++j) {
      const int32_t expert = routing.ids[t * k + j];
      if (expert < 0 || !computed[expert]) continue;
      const float weight = Spec(call).routing.weight_input ? 1 : routing.weights[t * k + j];
      const float* slot = outputs_.data() + (t * k + j) * hidden;
      for (int64_t i = 0; i < hidden; ++i) row[i] += weight * slot[i];
    }
  }
  return {{partial_.data(), DType::kF32, tokens, hidden, hidden},
          {next_input_.data(), DType::kF32, tokens, next_hidden, next_hidden}};
}

absl::Status CpuExecutor::ScoreNext(const ExecutorCall& call, bool filled,
                                    std::vector<float>* scores) {
  return parts_.router->Score(call.layer + 1, filled ? next_input_.data() : x_.data(), call.tokens,
                              scores);
}

namespace {

/// The formats that one call may contain: routed experts of every version, and shared experts,
/// which stay bf16.
std::vector<ExpertFormat> Formats(const ExecutorSize& size, int layer) {
  std::vector<ExpertFormat> formats = {ExpertFormat::Uniform(Scheme{})};
  for (int e = 0; e < size.source->model().layers[layer].num_experts; ++e) {
    for (const int version : size.versions) {
      const ExpertFormat format = size.source->layout(layer, e, version).format;
      if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
        formats.push_back(format);
      }
    }
  }
  return formats;
}

}  // namespace

int64_t CpuWorkspaceBytes(const ExecutorSize& size, int io_threads) {
  const MoeModelSpec& model = size.source->model();
  const int64_t tokens = size.max_tokens;
  int64_t gemm_bytes = 0, call_bytes = 0, hidden = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    const int64_t k = layer.routing.top_k;
    const int64_t rows = tokens * (k + 1);  // slots and shared experts
    hidden = std::max(hidden, layer.hidden);
    gemm_bytes = std::max(
        gemm_bytes, size.gemm->WorkspaceBytes(
                        layer.routing.weight_input ? rows : tokens, rows, layer.hidden,
                        std::max(layer.intermediate, layer.shared_intermediate), Formats(size, l)));
    // Outputs by slot; ids, weights and two groupings of each pair; scores and logits of this and
    // the next layer.
    const int64_t outputs = layer.routing.weight_input ? 2 : 1;  // 2: weighted inputs as well
    call_bytes =
        std::max(call_bytes, outputs * rows * layer.hidden * 4 + tokens * k * 16 + tokens * 8 +
                                 tokens * int64_t{model.max_experts()} * 16 +
                                 (size.partial_output ? 2 * tokens * layer.hidden * 4 : 0));
  }
  const int64_t input_and_output = 2 * tokens * hidden * 4;
  return gemm_bytes + call_bytes + input_and_output + io_threads * size.source->scratch_bytes();
}

}  // namespace moert
