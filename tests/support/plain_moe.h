// The test oracle of an MoE block: every expert widened to fp32, plain loops, no library code but
// the readers of the checkpoint. Slow and obvious.
#ifndef MOERT_TESTS_SUPPORT_PLAIN_MOE_H_
#define MOERT_TESTS_SUPPORT_PLAIN_MOE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "host/moe_runner.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"

namespace moert {

/// Softmax over all experts then top-k (the Qwen-MoE family), SiLU, optional gated shared expert.
class PlainMoe : public host::MoeRunner {
 public:
  absl::Status Load(const Checkpoint& checkpoint, const HfConfig& config) {
    for (const MoeLayerSpec& spec : config.moe.layers) {
      if (spec.routing.kind != RoutingKind::kSoftmaxTopK || spec.activation != Activation::kSilu) {
        return absl::UnimplementedError("the oracle knows softmax routing and SiLU only");
      }
      Layer layer{spec, {}, {}, {}, {}};
      const std::string name = "model.layers." + std::to_string(spec.model_layer) + ".mlp.";
      const auto read = [&](const std::string& tensor, int64_t rows, int64_t cols) {
        return checkpoint.ReadF32(name + tensor + ".weight", {rows, cols});
      };
      const auto block = [&](const std::string& prefix, int64_t width) -> absl::StatusOr<Expert> {
        Expert e;
        MOERT_ASSIGN_OR_RETURN(e.gate, read(prefix + "gate_proj", width, spec.hidden));
        MOERT_ASSIGN_OR_RETURN(e.up, read(prefix + "up_proj", width, spec.hidden));
        MOERT_ASSIGN_OR_RETURN(e.down, read(prefix + "down_proj", spec.hidden, width));
        return e;
      };
      MOERT_ASSIGN_OR_RETURN(layer.router, read("gate", spec.num_experts, spec.hidden));
      for (int e = 0; e < spec.num_experts; ++e) {
        MOERT_ASSIGN_OR_RETURN(Expert expert,
                               block("experts." + std::to_string(e) + ".", spec.intermediate));
        layer.experts.push_back(std::move(expert));
      }
      if (spec.shared_intermediate > 0) {
        MOERT_ASSIGN_OR_RETURN(layer.shared, block("shared_expert.", spec.shared_intermediate));
        MOERT_ASSIGN_OR_RETURN(layer.shared_gate, read("shared_expert_gate", 1, spec.hidden));
      }
      layers_.push_back(std::move(layer));
    }
    return absl::OkStatus();
  }

  absl::Status BeginStep(host::StepPhase, const host::StepRows&) override {
    ++open_steps;
    return absl::OkStatus();
  }
  absl::Status EndStep() override {
    --open_steps;
    return absl::OkStatus();
  }
  int64_t max_rows() const override { return rows_limit; }

  absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) override {
    if (forwards_until_failure >= 0 && forwards_until_failure-- == 0) {
      return absl::UnavailableError("injected failure");
    }
    const Layer& layer = layers_[moe_layer];
    const int64_t hidden = layer.spec.hidden;
    for (int64_t r = 0; r < rows; ++r) Row(layer, x + r * hidden, out + r * hidden);
    return absl::OkStatus();
  }

  int open_steps = 0;
  int64_t rows_limit = 4096;
  int64_t forwards_until_failure = -1;  // -1: never

 private:
  struct Expert {
    std::vector<float> gate, up, down;
  };
  struct Layer {
    MoeLayerSpec spec;
    std::vector<float> router, shared_gate;
    std::vector<Expert> experts;
    Expert shared;
  };

  static float Dot(const float* a, const float* b, int64_t n) {
    float lanes[16] = {};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      for (int l = 0; l < 16; ++l) lanes[l] += a[i + l] * b[i + l];
    }
    for (; i < n; ++i) lanes[0] += a[i] * b[i];
    return std::accumulate(lanes, lanes + 16, 0.0f);
  }

  static void AddExpert(const Expert& e, float weight, const float* x, int64_t hidden, float* out) {
    const int64_t width = static_cast<int64_t>(e.gate.size()) / hidden;
    std::vector<float> h(width);
    for (int64_t i = 0; i < width; ++i) {
      const float g = Dot(&e.gate[i * hidden], x, hidden);
      h[i] = g / (1.0f + std::exp(-g)) * Dot(&e.up[i * hidden], x, hidden);
    }
    for (int64_t i = 0; i < hidden; ++i)
      out[i] += weight * Dot(&e.down[i * width], h.data(), width);
  }

  static void Row(const Layer& layer, const float* x, float* out) {
    const MoeLayerSpec& spec = layer.spec;
    const int64_t hidden = spec.hidden;
    std::vector<float> p(spec.num_experts);
    for (int e = 0; e < spec.num_experts; ++e) p[e] = Dot(&layer.router[e * hidden], x, hidden);
    const float max = *std::max_element(p.begin(), p.end());
    float sum = 0.0f;
    for (float& v : p) sum += v = std::exp(v - max);
    std::vector<int> order(spec.num_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
    float chosen = 0.0f;
    for (int k = 0; k < spec.routing.top_k; ++k) chosen += p[order[k]] / sum;
    std::fill(out, out + hidden, 0.0f);
    for (int k = 0; k < spec.routing.top_k; ++k) {
      const float weight = p[order[k]] / sum / (spec.routing.renormalize ? chosen : 1.0f);
      AddExpert(layer.experts[order[k]], weight * spec.routing.scaling, x, hidden, out);
    }
    if (spec.shared_intermediate > 0) {
      const float gate = spec.shared_gate ? Dot(layer.shared_gate.data(), x, hidden) : 0.0f;
      AddExpert(layer.shared, spec.shared_gate ? 1.0f / (1.0f + std::exp(-gate)) : 1.0f, x, hidden,
                out);
    }
  }

  std::vector<Layer> layers_;
};

}  // namespace moert

#endif  // MOERT_TESTS_SUPPORT_PLAIN_MOE_H_
