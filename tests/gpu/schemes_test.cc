// Every scheme the device executes, alone and mixed in one launch, over odd shapes and skewed
// routings, against sums in double precision of the dequantized weights.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bf16.h"
#include "device_step.h"
#include "moert/router.h"
#include "quant/packing.h"
#include "quant/quantized_matrix.h"
#include "quant/rtn.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

struct Shape {
  int64_t hidden, intermediate;
  int experts, top_k;
  Activation activation = Activation::kSilu;
};

/// One layer; expert e is stored in schemes[e % n].
class MixedSource final : public ExpertSource {
 public:
  MixedSource(const Shape& shape, const std::vector<std::string>& schemes, double skew) {
    model_.architecture = "synthetic";
    MoeLayerSpec layer;
    layer.num_experts = shape.experts;
    layer.hidden = shape.hidden;
    layer.intermediate = shape.intermediate;
    layer.activation = shape.activation;
    layer.routing.top_k = shape.top_k;
    layer.routing.renormalize = true;
    model_.layers.push_back(layer);
    std::mt19937_64 rng(17);
    for (int e = 0; e < shape.experts; ++e) {
      const Scheme scheme = *Scheme::Parse(schemes[e % schemes.size()]);
      layouts_.push_back(
          *MakeRecordLayout(shape.hidden, shape.intermediate, ExpertFormat::Uniform(scheme)));
    }
    for (const RecordLayout& layout : layouts_) {
      std::vector<std::byte> record(layout.bytes, std::byte{0xff});
      std::vector<std::vector<float>> matrices;
      for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
        const std::vector<float> w = SyntheticSource::RandomFloats(
            m->rows * m->k, 1.0f / std::sqrt(static_cast<float>(m->k)), &rng);
        if (m->scheme.is_bf16()) {
          REQUIRE_OK(PackMatrixBf16(*m, absl::MakeConstSpan(w), record.data()));
          matrices.emplace_back();
          REQUIRE_OK(UnpackMatrix(*m, record.data(), &matrices.back()));
        } else {
          const QuantizedMatrix q = QuantizeRtn(*m, absl::MakeConstSpan(w), {.grid = 1});
          REQUIRE_OK(PackMatrix(*m, q, record.data()));
          matrices.push_back(Dequantize(m->scheme, q));
        }
      }
      records_.push_back(std::move(record));
      weights_.push_back(std::move(matrices));
    }
    gate_ = SyntheticSource::RandomFloats(shape.experts * shape.hidden, 0.1f, &rng);
    // Positive inputs and a positive bias in a few rows make popular experts.
    for (int64_t i = 0; i < shape.hidden; ++i) gate_[i] += static_cast<float>(skew);
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 1; }
  absl::string_view version_name(int) const override { return "mixed"; }
  const RecordLayout& layout(int, int expert, int) const override { return layouts_[expert]; }
  absl::Status ReadRecord(int, int expert, int, absl::Span<std::byte> dst) const override {
    std::memcpy(dst.data(), records_[expert].data(), records_[expert].size());
    return absl::OkStatus();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int) const override {
    LayerConstants c;
    c.gate = gate_;
    return c;
  }

  /// The layer in double precision, activations rounded to bf16 where the schemes say so.
  std::vector<double> Reference(const std::vector<float>& x, int64_t rows) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden, inner = layer.intermediate;
    std::vector<double> out(rows * hidden, 0.0);
    std::vector<float> logits(layer.num_experts), scores(layer.num_experts);
    std::vector<int32_t> ids(layer.routing.top_k);
    std::vector<float> weights(layer.routing.top_k);
    std::vector<double> h(inner);
    for (int64_t t = 0; t < rows; ++t) {
      const float* row = x.data() + t * hidden;
      for (int e = 0; e < layer.num_experts; ++e) {
        double dot = 0;
        for (int64_t i = 0; i < hidden; ++i) {
          dot += static_cast<double>(gate_[e * hidden + i]) * row[i];
        }
        logits[e] = static_cast<float>(dot);
      }
      REQUIRE_OK(RouteToken(layer.routing, logits, {}, scores.data(), ids.data(), weights.data()));
      for (int j = 0; j < layer.routing.top_k; ++j) {
        const auto& m = weights_[ids[j]];
        for (int64_t r = 0; r < inner; ++r) {
          double gate = 0, up = 0;
          for (int64_t i = 0; i < hidden; ++i) {
            const double v = Bf16ToF32(F32ToBf16(row[i]));
            gate += m[0][r * hidden + i] * v;
            up += m[1][r * hidden + i] * v;
          }
          const double activated = layer.activation == Activation::kSilu
                                       ? gate / (1 + std::exp(-gate))
                                       : 0.5 * gate * (1 + std::erf(gate * 0.70710678118654752));
          h[r] = Bf16ToF32(F32ToBf16(static_cast<float>(activated * up)));
        }
        for (int64_t c = 0; c < hidden; ++c) {
          double sum = 0;
          for (int64_t r = 0; r < inner; ++r) sum += m[2][c * inner + r] * h[r];
          out[t * hidden + c] += weights[j] * sum;
        }
      }
    }
    return out;
  }

 private:
  MoeModelSpec model_;
  std::string name_ = "mixed";
  std::vector<RecordLayout> layouts_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<std::vector<std::vector<float>>> weights_;  // dequantized gate, up, down
  std::vector<float> gate_;
};

void CheckCase(const Shape& shape, const std::vector<std::string>& schemes, int64_t rows,
               double skew = 0) {
  const auto source = std::make_shared<MixedSource>(shape, schemes, skew);
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.max_tokens_per_forward = rows;
  std::mt19937_64 rng(rows);
  std::vector<float> x = SyntheticSource::RandomFloats(rows * shape.hidden, 1.0f, &rng);
  for (float& v : x) v += 0.25f;  // a mean, so that zero points matter
  const std::vector<double> reference = source->Reference(x, rows);
  std::vector<float> resident;
  for (const char* strategy : {"resident", "on-demand"}) {
    options.strategy = strategy;
    options.budget = Budget::Fraction(std::strcmp(strategy, "resident") == 0 ? 1.0 : 0.4);
    auto engine = Engine::Create(source, options);
    REQUIRE_OK(engine.status());
    DeviceRowsBuffer device(x.size());
    std::vector<float> outputs;
    REQUIRE_OK(RunDeviceStep(engine->get(), Phase::kPrefill, x, rows, &device, &outputs));
    INFO(schemes[0] << " x" << schemes.size() << ", hidden " << shape.hidden << ", intermediate "
                    << shape.intermediate << ", " << rows << " rows, skew " << skew << ", "
                    << strategy);
    // bf16 rounds h at another last bit now and then; everything else is fp32.
    CHECK(RelativeError(outputs, reference) < 2e-3);
    if (resident.empty()) resident = outputs;
    CHECK(std::memcmp(resident.data(), outputs.data(), outputs.size() * sizeof(float)) == 0);
  }
}

const std::vector<std::string> kAll = {"bf16",
                                       "w8a16_g128",
                                       "w4a16_g128",
                                       "w4a16_g128_asym",
                                       "w4a16_g-1_asym",
                                       "w3a16_g128_asym",
                                       "w3a16_g-1_asym",
                                       "w2a16_g64_asym",
                                       "w2a16_g128_asym",
                                       "w2a16_g-1_asym"};

TEST_CASE("every scheme, alone") {
  for (const std::string& scheme : kAll) {
    CheckCase({256, 128, 8, 2}, {scheme}, 7);
    CheckCase({384, 208, 6, 3}, {scheme}, 33);
  }
}

TEST_CASE("schemes mixed in one launch") {
  CheckCase({512, 256, 20, 4}, kAll, 1);
  CheckCase({512, 256, 20, 4}, kAll, 40);
  CheckCase({512, 256, 20, 4, Activation::kGelu}, kAll, 9);
}

TEST_CASE("shapes that are not multiples of the tiles") {
  for (const char* scheme : {"bf16", "w4a16_g128", "w2a16_g64_asym", "w3a16_g128_asym"}) {
    CheckCase({72, 40, 4, 1}, {scheme}, 5);
    CheckCase({144, 16, 4, 2}, {scheme}, 3);
    CheckCase({1040, 336, 4, 2}, {scheme}, 17);
  }
}

TEST_CASE("skewed routing: one expert gets almost everything, others nothing") {
  CheckCase({128, 64, 32, 2}, kAll, 128, 0.5);
  CheckCase({128, 64, 32, 2}, {"bf16"}, 600, 0.5);
}

}  // namespace
}  // namespace moert::test
