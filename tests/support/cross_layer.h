// The next layer's gate on this layer's gate input, over a token file: how alike adjacent gate
// inputs are, and how much of the true routing the prediction names.
#ifndef MOERT_TESTS_SUPPORT_CROSS_LAYER_H_
#define MOERT_TESTS_SUPPORT_CROSS_LAYER_H_

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "host/engine_runner.h"
#include "host/model.h"
#include "host/perplexity.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/source/expert_source.h"
#include "moert/tools/trace.h"

namespace moert::test {

/// Means over tokens; of a layer and the one before it, [L], those of layer 0 are 0.
struct CrossLayer {
  std::vector<double> cosine;   // of the two gate inputs
  std::vector<double> top_k;    // share of the k used among the k predicted best
  std::vector<double> quarter;  // ... among the quarter of the experts predicted best
  int64_t tokens = 0;
  double nll = 0;
};

/// Sums up while the model runs: gate inputs from the runner, routing and predictions from the
/// engine's own router.
class CrossLayerMeter final : public TraceSink {
 public:
  explicit CrossLayerMeter(int layers) : sums_{Zeros(layers), Zeros(layers), Zeros(layers)} {}

  void OnInput(int layer, const float* x, int64_t rows, int64_t hidden) {
    if (layer == 0) sums_.tokens += rows;
    for (int64_t t = 0; layer > 0 && t < rows; ++t) {
      const float* a = &input_[t * hidden];
      const float* b = x + t * hidden;
      const double ab = std::inner_product(a, a + hidden, b, 0.0);
      const double aa = std::inner_product(a, a + hidden, a, 0.0);
      const double bb = std::inner_product(b, b + hidden, b, 0.0);
      sums_.cosine[layer] += ab / std::sqrt(aa * bb);
    }
    input_.assign(x, x + rows * hidden);
  }

  void OnCall(const TraceCall& call) override {
    const int64_t k = static_cast<int64_t>(call.ids.size()) / call.tokens;
    for (int64_t t = 0; call.layer > 0 && t < call.tokens; ++t) {
      const int64_t experts = static_cast<int64_t>(predicted_.size()) / call.tokens;
      const float* scores = &predicted_[t * experts];
      for (int64_t i = 0; i < k; ++i) {
        const int32_t used = call.ids[t * k + i];
        const int64_t better = std::count_if(scores, scores + experts,
                                             [&](float score) { return score > scores[used]; });
        sums_.top_k[call.layer] += (better < k) / static_cast<double>(k);
        sums_.quarter[call.layer] += (better < experts / 4) / static_cast<double>(k);
      }
    }
    predicted_.assign(call.next_scores.begin(), call.next_scores.end());
  }
  void OnSpan(const TimelineSpan&) override {}

  CrossLayer Means(double nll) const {
    CrossLayer means = sums_;
    means.nll = nll;
    for (auto* sums : {&means.cosine, &means.top_k, &means.quarter}) {
      for (double& sum : *sums) sum /= static_cast<double>(sums_.tokens);
    }
    return means;
  }

 private:
  static std::vector<double> Zeros(int layers) { return std::vector<double>(layers, 0); }

  CrossLayer sums_;
  std::vector<float> input_, predicted_;  // of the layer before
};

class MeteredRunner final : public host::EngineRunner {
 public:
  MeteredRunner(Engine* engine, int64_t max_rows, CrossLayerMeter* meter)
      : EngineRunner(engine, max_rows), model_(engine->model()), meter_(meter) {}
  absl::Status Forward(int layer, const float* x, int64_t rows, float* out) override {
    meter_->OnInput(layer, x, rows, model_.layers[layer].hidden);
    return EngineRunner::Forward(layer, x, rows, out);
  }

 private:
  const MoeModelSpec& model_;
  CrossLayerMeter* meter_;
};

/// Over windows of 512 tokens, one prefill each.
inline absl::StatusOr<CrossLayer> MeasureCrossLayer(const std::string& model_dir,
                                                    const std::string& cache_dir,
                                                    absl::Span<const int32_t> tokens) {
  OpenModelOptions open;
  open.cache_dir = cache_dir;
  MOERT_ASSIGN_OR_RETURN(const std::shared_ptr<const ExpertSource> source,
                         OpenModel(model_dir, open));
  const auto meter = std::make_shared<CrossLayerMeter>(source->model().num_layers());
  EngineOptions options;
  options.strategy = "resident";
  options.max_tokens_per_forward = 512;
  options.trace = meter;
  MOERT_ASSIGN_OR_RETURN(const auto engine, Engine::Create(source, options));
  MeteredRunner runner(engine.get(), 512, meter.get());
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(model_dir));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model_dir));
  MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool({}));
  MOERT_ASSIGN_OR_RETURN(const auto decoder,
                         host::Decoder::Load(*checkpoint, config, pool.get(), &runner));
  MOERT_ASSIGN_OR_RETURN(const auto scored, host::Perplexity(decoder.get(), tokens, {}));
  return meter->Means(scored.nll);
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_CROSS_LAYER_H_
