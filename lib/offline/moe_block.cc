#include "offline/moe_block.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "route/route_token.h"

namespace moert::offline {
namespace {

/// False: left to the CPU.
bool ForwardOn(OfflineDevice* device, const MoeLayerSpec& layer, const ExpertMatrices& weights,
               int64_t rows, Floats* x) {
  const std::unique_ptr<DeviceExpert> expert = device->Expert(layer, rows);
  return expert != nullptr && expert->Run(weights, x->data()).ok() &&
         expert->Outputs(x->data()).ok();
}

}  // namespace

absl::Status ForwardExpert(const MoeLayerSpec& layer, const ExpertMatrices& weights,
                           const Compute& compute, OfflineDevice* device, Floats* x) {
  const int64_t rows = static_cast<int64_t>(x->size()) / layer.hidden;
  if (device != nullptr && ForwardOn(device, layer, weights, rows, x)) return absl::OkStatus();
  const Floats h = GluForward(compute, layer, weights.gate, weights.up, x->data(), rows);
  MatMul(compute, weights.down, layer.hidden, layer.intermediate, h.data(), rows, x->data());
  return absl::OkStatus();
}

namespace {

// Experts whose inputs are in memory together, per thread: more than one, since their numbers of
// tokens differ.
constexpr int kExpertsPerThread = 4;

/// The expert's rows without those that are done.
ExpertRows Undone(const ExpertRows& all, const std::vector<uint8_t>& done) {
  ExpertRows rest;
  for (size_t i = 0; i < all.rows.size(); ++i) {
    if (done[all.rows[i]] != 0) continue;
    rest.rows.push_back(all.rows[i]);
    rest.weights.push_back(all.weights[i]);
  }
  return rest;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MoeBlocks>> MoeBlocks::Create(const CheckpointExperts* experts,
                                                             const Compute& compute) {
  ThreadPool* const pool = compute.pool;
  std::unique_ptr<MoeBlocks> blocks(new MoeBlocks(experts, compute));
  std::vector<RouterConstants> routers;
  const int layers = experts->model().num_layers();
  blocks->constants_.reserve(layers);  // the router borrows from them
  for (int l = 0; l < layers; ++l) {
    const MoeLayerSpec& spec = experts->model().layers[l];
    if (!spec.activation.gated || spec.expert_bias || spec.routing.weight_input ||
        spec.routing.hash_vocab > 0) {
      return Unimplemented(
          "layer {}: calibration does not know experts without a gate or with biases, weighted "
          "inputs, or experts by token id; quantize with method rtn or hqq",
          l);
    }
    MOERT_ASSIGN_OR_RETURN(LayerConstants constants, experts->ReadConstants(l));
    blocks->constants_.push_back(std::move(constants));
    routers.push_back(RouterConstants::Of(blocks->constants_.back()));
  }
  MOERT_ASSIGN_OR_RETURN(blocks->router_, Router::Create(&experts->model(), routers, pool));
  for (int t = 0; t < pool->num_threads(); ++t) {
    ThreadPoolOptions options;
    options.threads = 1;
    MOERT_ASSIGN_OR_RETURN(auto single, CreateThreadPool(options));
    blocks->single_.push_back(std::move(single));
  }
  return blocks;
}

absl::Status MoeBlocks::Run(int layer, CalibrationStream* stream, ExpertJob job, ExpertDone done) {
  stream->ToMoe(layer);
  MOERT_RETURN_IF_ERROR(router_->Route(layer, stream->inputs(), stream->rows(), RoutingRule(),
                                       LayerResidency(), {}, /*next_gate=*/true, &routing_));
  CompareWithPrediction(layer);
  MOERT_RETURN_IF_ERROR(RunExperts(layer, stream, nullptr, job, done));
  return AddShared(layer, stream->inputs(), stream->rows(), stream->residual());
}

absl::Status MoeBlocks::Forward(int layer, CalibrationStream* stream, OfflineDevice* device) {
  const MoeLayerSpec& spec = experts_->model().layers[layer];
  stream->ToMoe(layer);
  MOERT_RETURN_IF_ERROR(router_->Route(layer, stream->inputs(), stream->rows(), RoutingRule(),
                                       LayerResidency(), {}, /*next_gate=*/false, &routing_));
  predicted_layer_ = -1;
  std::vector<uint8_t> done(static_cast<size_t>(stream->rows()), 0);
  if (device != nullptr) {
    const auto read = [this, layer](int e, ExpertWeights* out) {
      return experts_->ReadExpert(layer, e, out);
    };
    MOERT_RETURN_IF_ERROR(device->AddExperts({spec, routing_, stream->inputs(), stream->residual()},
                                             read, compute_.pool, &done));
  }
  if (std::find(done.begin(), done.end(), 0) != done.end()) {
    const auto forward = [&](int e, const ExpertRows&, Floats* x,
                             ThreadPool* single) -> absl::Status {
      if (x->empty()) return absl::OkStatus();
      ExpertWeights stored;
      ExpertMatrices weights;
      MOERT_RETURN_IF_ERROR(experts_->ReadExpert(layer, e, &stored));
      MOERT_RETURN_IF_ERROR(WidenExpert(stored, &weights));
      return ForwardExpert(spec, weights, {single, compute_.products}, device, x);
    };
    MOERT_RETURN_IF_ERROR(
        RunExperts(layer, stream, &done, forward, [](int) { return absl::OkStatus(); }));
  }
  return AddShared(layer, stream->inputs(), stream->rows(), stream->residual());
}

absl::Status MoeBlocks::RunExperts(int layer, CalibrationStream* stream,
                                   const std::vector<uint8_t>* done, ExpertJob job,
                                   ExpertDone expert_done) {
  const MoeLayerSpec& spec = experts_->model().layers[layer];
  const int chunk = kExpertsPerThread * compute_.pool->num_threads();
  for (int begin = 0; begin < spec.num_experts; begin += chunk) {
    std::vector<Part> parts(std::min(chunk, spec.num_experts - begin));
    compute_.pool->Run(static_cast<int64_t>(parts.size()), [&](int64_t i, int worker) {
      Part& part = parts[i];
      try {
        part.tokens = RowsOf(routing_, begin + static_cast<int>(i));
        if (done != nullptr) part.tokens = Undone(part.tokens, *done);
        part.values = GatherRows(stream->inputs(), spec.hidden, part.tokens.rows);
        part.status =
            job(begin + static_cast<int>(i), part.tokens, &part.values, single_[worker].get());
      } catch (const std::bad_alloc&) {
        part.status = absl::ResourceExhaustedError("out of memory");
      }
    });
    for (const Part& part : parts) MOERT_RETURN_IF_ERROR(part.status);
    AddOutputs(parts, spec.hidden, stream->residual());
    for (size_t i = 0; i < parts.size(); ++i) {
      MOERT_RETURN_IF_ERROR(expert_done(begin + static_cast<int>(i)));
    }
  }
  return absl::OkStatus();
}

// Adds expert by expert: the order of a token's additions must not depend on timing. Each thread
// has its own channels.
void MoeBlocks::AddOutputs(const std::vector<Part>& parts, int64_t hidden, float* residual) const {
  constexpr int64_t kChannels = 128;
  compute_.pool->Run(CeilDiv(hidden, kChannels), [&](int64_t slice, int) {
    const int64_t first = slice * kChannels, end = std::min(hidden, first + kChannels);
    for (const Part& part : parts) {
      for (size_t t = 0; t < part.tokens.rows.size(); ++t) {
        float* const to = residual + part.tokens.rows[t] * hidden;
        const float* const from = part.values.data() + static_cast<int64_t>(t) * hidden;
        const float weight = part.tokens.weights[t];
        for (int64_t c = first; c < end; ++c) to[c] += weight * from[c];
      }
    }
  });
}

void MoeBlocks::CompareWithPrediction(int layer) {
  cross_layer_accuracy_ = 0;
  const auto experts = static_cast<size_t>(routing_.num_experts);
  const auto k = static_cast<size_t>(routing_.top_k);
  if (predicted_layer_ == layer &&
      predicted_.size() == static_cast<size_t>(routing_.tokens) * experts) {
    constexpr int64_t kTokensAJob = 256;
    std::atomic<int64_t> found{0};
    std::vector<int32_t> chosen(static_cast<size_t>(compute_.pool->num_threads()) * k);
    compute_.pool->Run(CeilDiv(routing_.tokens, kTokensAJob), [&](int64_t job, int worker) {
      const int64_t end = std::min(routing_.tokens, (job + 1) * kTokensAJob);
      int32_t* const best = chosen.data() + static_cast<size_t>(worker) * k;
      int64_t here = 0;
      for (int64_t t = job * kTokensAJob; t < end; ++t) {
        TopK(absl::MakeConstSpan(predicted_).subspan(static_cast<size_t>(t) * experts, experts),
             routing_.top_k, best);
        const int32_t* const ids = routing_.ids.data() + static_cast<size_t>(t) * k;
        for (size_t j = 0; j < k; ++j) here += std::count(ids, ids + k, best[j]);
      }
      found += here;
    });
    cross_layer_accuracy_ = static_cast<double>(found) /
                            (static_cast<double>(routing_.tokens) * static_cast<double>(k));
  }
  predicted_ = routing_.next_scores;
  predicted_layer_ = layer + 1;
}

absl::Status MoeBlocks::AddShared(int layer, const float* inputs, int64_t rows,
                                  float* residual) const {
  MoeLayerSpec spec = experts_->model().layers[layer];
  const LayerConstants& c = constants(layer);
  if (spec.shared_intermediate == 0) return absl::OkStatus();
  ExpertMatrices shared;
  MOERT_RETURN_IF_ERROR(UnpackExpert(c.shared_layout, c.shared_expert.data(), &shared));
  spec.intermediate = spec.shared_intermediate;
  constexpr int64_t kRowsAtOnce = 16384, kRowsAJob = 64;
  for (int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, rows - first);
    const float* const x = inputs + first * spec.hidden;
    const Floats h = GluForward(compute_, spec, shared.gate, shared.up, x, count);
    Floats y(count * spec.hidden);
    MatMul(compute_, shared.down, spec.hidden, spec.intermediate, h.data(), count, y.data());
    const auto add = [&](int64_t r) {
      float gate = 1.0f;
      if (spec.shared_gate) {
        double dot = 0;
        for (int64_t i = 0; i < spec.hidden; ++i) {
          dot += double{x[r * spec.hidden + i]} * c.shared_gate[i];
        }
        gate = static_cast<float>(1.0 / (1.0 + std::exp(-dot)));
      }
      float* const to = residual + (first + r) * spec.hidden;
      for (int64_t i = 0; i < spec.hidden; ++i) to[i] += gate * y[r * spec.hidden + i];
    };
    compute_.pool->Run(CeilDiv(count, kRowsAJob), [&](int64_t job, int) {
      const int64_t begin = job * kRowsAJob, end = std::min(count, begin + kRowsAJob);
      for (int64_t r = begin; r < end; ++r) add(r);
    });
  }
  return absl::OkStatus();
}

}  // namespace moert::offline
