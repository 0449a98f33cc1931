// The faithful promise: a layer whose misses a CPU computes beside a device gives the device's
// numbers but for rounding. A device multiplies as kernel sets do: bf16 (or integer) activations,
// sums in fp32, h rounded before down, rows weighted in fp32. So two sets stand for the two
// processors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/status_macros.h"
#include "host/perplexity.h"
#include "moert/mixed_group_gemm.h"
#include "moert/offline/encode_matrix.h"
#include "moert/scheme.h"
#include "support/catch.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

// Stated in docs/guide/strategies.md.
constexpr double kPerplexity = 2e-4;  // of the perplexity
constexpr double kLayer = 1.0 / 512;  // of the norm of a token's row

struct Record {
  RecordLayout layout;
  AlignedBuffer bytes;
};

struct Layer {
  MoeLayerSpec spec;
  std::vector<float> router, shared_gate;
  std::vector<Record> experts;  // the last one is the shared expert, in bf16
};

absl::StatusOr<Record> Encode(const Checkpoint& checkpoint, const std::string& prefix,
                              int64_t hidden, int64_t width, const Scheme& scheme) {
  Record r;
  MOERT_ASSIGN_OR_RETURN(r.layout, MakeRecordLayout(hidden, width, ExpertFormat::Uniform(scheme)));
  MOERT_RETURN_IF_ERROR(r.bytes.Reset(r.layout.bytes));
  const auto encode = [&](const MatrixLayout& m, const char* name) -> absl::Status {
    MOERT_ASSIGN_OR_RETURN(const std::vector<float> weights,
                           checkpoint.ReadF32(prefix + name + ".weight", {m.rows, m.k}));
    return EncodeMatrix(m, QuantMethod::kRtn, weights, r.bytes.data());
  };
  MOERT_RETURN_IF_ERROR(encode(r.layout.gate, "gate_proj"));
  MOERT_RETURN_IF_ERROR(encode(r.layout.up, "up_proj"));
  MOERT_RETURN_IF_ERROR(encode(r.layout.down, "down_proj"));
  return r;
}

absl::StatusOr<std::vector<Layer>> EncodeLayers(const Checkpoint& checkpoint,
                                                const HfConfig& config, const Scheme& scheme) {
  std::vector<Layer> layers;
  for (const MoeLayerSpec& spec : config.moe.layers) {
    Layer layer{spec, {}, {}, {}};
    const std::string name = "model.layers." + std::to_string(spec.model_layer) + ".mlp.";
    MOERT_ASSIGN_OR_RETURN(
        layer.router, checkpoint.ReadF32(name + "gate.weight", {spec.num_experts, spec.hidden}));
    MOERT_ASSIGN_OR_RETURN(layer.shared_gate, checkpoint.ReadF32(name + "shared_expert_gate.weight",
                                                                 {1, spec.hidden}));
    for (int e = 0; e <= spec.num_experts; ++e) {
      const bool shared = e == spec.num_experts;
      MOERT_ASSIGN_OR_RETURN(
          Record r,
          Encode(checkpoint,
                 name + (shared ? "shared_expert." : "experts." + std::to_string(e) + "."),
                 spec.hidden, shared ? spec.shared_intermediate : spec.intermediate,
                 shared ? Scheme{} : scheme));
      layer.experts.push_back(std::move(r));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

// Layers whose experts two processors compute, `share` of 4 of them the CPU.
class TwoProcessors : public host::MoeRunner {
 public:
  TwoProcessors(MixedGroupGemm* device, MixedGroupGemm* cpu) : device_(device), cpu_(cpu) {}

  void Use(const std::vector<Layer>* layers, int share) {
    layers_ = layers;
    share_ = share;
    worst_ = 0;
  }
  // The largest distance of a token's row from what the device alone computes of the same input.
  double worst() const { return worst_; }

  absl::Status BeginStep(host::StepPhase, const host::StepRows&) override {
    return absl::OkStatus();
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  int64_t max_rows() const override { return 512; }

  absl::Status Forward(int moe_layer, const float* x, int64_t rows, float* out) override {
    const Layer& layer = (*layers_)[static_cast<size_t>(moe_layer)];
    const int64_t hidden = layer.spec.hidden;
    MOERT_RETURN_IF_ERROR(Layers(layer, moe_layer, share_, x, rows, out));
    constexpr int64_t kCompared = 64;  // rows of a call
    const int64_t some = share_ == 0 ? 0 : std::min(rows, kCompared);
    std::vector<float> alone(static_cast<size_t>(some * hidden));
    if (some > 0) MOERT_RETURN_IF_ERROR(Layers(layer, moe_layer, 0, x, some, alone.data()));
    for (int64_t r = 0; r < some; ++r) {
      double error = 0, norm = 0;
      for (int64_t i = r * hidden; i < (r + 1) * hidden; ++i) {
        const double value = alone[static_cast<size_t>(i)];
        error += (out[i] - value) * (out[i] - value);
        norm += value * value;
      }
      worst_ = std::max(worst_, std::sqrt(error / norm));
    }
    return absl::OkStatus();
  }

 private:
  struct Pair {
    int32_t expert;
    float weight;
  };

  // Softmax over all experts, then the best; the shared expert last, by its own gate.
  static void Route(const Layer& layer, const float* x, std::vector<Pair>* pairs) {
    const MoeLayerSpec& spec = layer.spec;
    const auto dot = [&](const float* w) { return std::inner_product(w, w + spec.hidden, x, 0.0); };
    std::vector<double> p;
    for (int e = 0; e < spec.num_experts; ++e) {
      p.push_back(std::exp(dot(layer.router.data() + e * spec.hidden)));
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (int k = 0; k < spec.routing.top_k; ++k) {
      const auto best = std::max_element(p.begin(), p.end());
      pairs->push_back({static_cast<int32_t>(best - p.begin()), static_cast<float>(*best / sum)});
      *best = -1;
    }
    pairs->push_back(
        {spec.num_experts, static_cast<float>(1 / (1 + std::exp(-dot(layer.shared_gate.data()))))});
  }

  absl::Status Layers(const Layer& layer, int number, int share, const float* x, int64_t rows,
                      float* out) {
    const int64_t hidden = layer.spec.hidden;
    std::vector<Pair> pairs;
    for (int64_t r = 0; r < rows; ++r) Route(layer, x + r * hidden, &pairs);
    const auto per_row = static_cast<int32_t>(layer.spec.routing.top_k + 1);
    std::map<int32_t, std::vector<int32_t>> slots;  // of an expert
    for (size_t i = 0; i < pairs.size(); ++i) {
      slots[pairs[i].expert].push_back(static_cast<int32_t>(i));
    }
    std::map<int32_t, std::vector<int32_t>> tokens;
    std::vector<ExpertProblem> problems[2];  // of the device, of the CPU
    for (const auto& [e, at] : slots) {
      for (const int32_t slot : at) tokens[e].push_back(slot / per_row);
      const bool cpu = e < layer.spec.num_experts && (e * 5 + number) % 4 < share;
      const Record& r = layer.experts[static_cast<size_t>(e)];
      problems[cpu].push_back({r.bytes.data(), &r.layout, layer.spec.activation, tokens[e], at});
    }
    AlignedBuffer products, input;  // as products want them aligned
    MOERT_RETURN_IF_ERROR(products.Reset(static_cast<int64_t>(pairs.size()) * hidden * 4));
    MOERT_RETURN_IF_ERROR(input.Reset(rows * hidden * 4));
    auto* const row_of = reinterpret_cast<float*>(products.data());
    auto* const in = reinterpret_cast<float*>(input.data());
    std::copy(x, x + rows * hidden, in);
    MOERT_RETURN_IF_ERROR(device_->Run(in, rows, hidden, problems[0], row_of));
    MOERT_RETURN_IF_ERROR(cpu_->Run(in, rows, hidden, problems[1], row_of));
    std::fill(out, out + rows * hidden, 0.0f);
    for (size_t i = 0; i < pairs.size(); ++i) {
      float* const to = out + static_cast<int64_t>(i) / per_row * hidden;
      const float* const from = row_of + static_cast<int64_t>(i) * hidden;
      for (int64_t c = 0; c < hidden; ++c) to[c] += pairs[i].weight * from[c];
    }
    return absl::OkStatus();
  }

  MixedGroupGemm* const device_;
  MixedGroupGemm* const cpu_;
  const std::vector<Layer>* layers_ = nullptr;
  int share_ = 0;
  double worst_ = 0;
};

// Mean negative log-likelihood of each window of each domain.
std::vector<double> Losses(host::Decoder* decoder) {
  constexpr size_t kTokens = 2 * 512;
  std::vector<double> losses;
  for (const char* domain : {"wikitext2", "gsm8k", "humaneval"}) {
    const std::vector<int32_t> tokens = ReadEvalTokens(domain);
    const auto result = host::Perplexity(decoder, absl::MakeSpan(tokens).subspan(0, kTokens), {});
    REQUIRE_OK(result.status());
    losses.insert(losses.end(), result->window_nll.begin(), result->window_nll.end());
  }
  return losses;
}

TEST_CASE("misses that a CPU computes leave layers and perplexity within the faithful bounds") {
  const std::vector<std::string> names = MixedGroupGemm::KernelNames();
  if (names.size() < 3) {  // one processor, and the reference, which is slow
    WARN("skipped: this machine has kernels of one instruction set");
    return;
  }
  TinyModel model(2);
  const auto numerics = ActivationNumerics::kBF16;
  auto device = MixedGroupGemm::Create(model.pool.get(), names[names.size() - 2], numerics);
  auto cpu = MixedGroupGemm::Create(model.pool.get(), names[0], numerics);
  REQUIRE_OK(device.status());
  REQUIRE_OK(cpu.status());
  TwoProcessors moe(device->get(), cpu->get());
  auto decoder = host::Decoder::Load(*model.checkpoint, model.config, model.pool.get(), &moe);
  REQUIRE_OK(decoder.status());
  for (const Scheme& scheme : Scheme::All()) {
    if (scheme.scales == ScaleType::kF16) continue;  // as their like with bf16 scales
    const auto layers = EncodeLayers(*model.checkpoint, model.config, scheme);
    REQUIRE_OK(layers.status());
    moe.Use(&*layers, 0);
    const std::vector<double> exact = Losses(decoder->get());
    moe.Use(&*layers, 2);
    const std::vector<double> shared = Losses(decoder->get());
    double sum = 0, squares = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      sum += shared[i] - exact[i];
      squares += (shared[i] - exact[i]) * (shared[i] - exact[i]);
    }
    const auto n = static_cast<double>(exact.size());
    const double difference = sum / n;
    // A token whose router is near a tie goes another way by chance: of a few thousand tokens the
    // mean has an error of its own, which is of no processor.
    const double error = std::sqrt((squares / n - difference * difference) / (n - 1));
    INFO(scheme.Name() << ": loss differs by " << difference << " +- " << error
                       << ", a layer's row by " << moe.worst());
    CHECK(std::abs(difference) <= kPerplexity + 3 * error);
    CHECK(error <= 10 * kPerplexity);
    CHECK(moe.worst() <= kLayer);
  }
}

}  // namespace
}  // namespace moert
