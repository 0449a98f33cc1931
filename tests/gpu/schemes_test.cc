// Every scheme, alone and mixed in one launch, over odd shapes and skewed routings, against the
// oracle of the CPU kernels: sums in double precision, activations rounded as the schemes say.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <tuple>

#include "absl/synchronization/mutex.h"
#include "device_step.h"
#include "kernels/reference/expert_mlp.h"
#include "moert/router.h"
#include "offline/rtn.h"
#include "quant/packing.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

struct Shape {
  int64_t hidden, intermediate;
  int experts, top_k;
  Activation activation = Activation::kSilu;
};

/// "+h": in the Hadamard domain.
ExpertFormat FormatOf(const std::string& name) {
  const bool hadamard = name.size() > 2 && name.substr(name.size() - 2) == "+h";
  return ExpertFormat::Uniform(*Scheme::Parse(hadamard ? name.substr(0, name.size() - 2) : name),
                               hadamard);
}

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
      layouts_.push_back(*MakeRecordLayout(shape.hidden, shape.intermediate,
                                           FormatOf(schemes[e % schemes.size()])));
    }
    for (const RecordLayout& layout : layouts_) {
      std::vector<std::byte> record(layout.bytes, std::byte{0xff});
      for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
        const std::vector<float> w = SyntheticSource::RandomFloats(
            m->rows * m->k, 1.0f / std::sqrt(static_cast<float>(m->k)), &rng);
        if (m->scheme.is_bf16()) {
          REQUIRE_OK(PackMatrixBf16(*m, absl::MakeConstSpan(w), record.data()));
        } else {
          const QuantizedMatrix q = QuantizeRtn(*m, absl::MakeConstSpan(w), {.grid = 1});
          REQUIRE_OK(PackMatrix(*m, q, record.data()));
        }
      }
      auto expert = kernels::ReferenceExpert::Make(record.data(), layout);
      REQUIRE_OK(expert.status());
      experts_.push_back(*std::move(expert));
      records_.push_back(std::move(record));
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

  /// The layer for some rows of x, and how far sums in fp32 may lie from it.
  void Reference(const std::vector<float>& x, const std::vector<int64_t>& rows,
                 std::vector<double>* out, std::vector<double>* tolerance) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden;
    out->assign(rows.size() * hidden, 0.0);
    tolerance->assign(rows.size() * hidden, 0.0);
    std::atomic<size_t> next{0};
    absl::Status status;
    absl::Mutex mutex;
    const auto work = [&] {
      for (size_t i = next++; i < rows.size(); i = next++) {
        const absl::Status done = ReferenceRow(
            x.data() + rows[i] * hidden, out->data() + i * hidden, tolerance->data() + i * hidden);
        absl::MutexLock lock(&mutex);
        status.Update(done);
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 1; t < std::thread::hardware_concurrency(); ++t) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    REQUIRE_OK(status);
  }

 private:
  absl::Status ReferenceRow(const float* row, double* out, double* tolerance) const {
    const MoeLayerSpec& layer = model_.layers[0];
    const int64_t hidden = layer.hidden;
    std::vector<float> logits(layer.num_experts), scores(layer.num_experts);
    std::vector<int32_t> ids(layer.routing.top_k);
    std::vector<float> weights(layer.routing.top_k), result(hidden), bound(hidden);
    for (int e = 0; e < layer.num_experts; ++e) {
      double dot = 0;
      for (int64_t c = 0; c < hidden; ++c) {
        dot += static_cast<double>(gate_[e * hidden + c]) * row[c];
      }
      logits[e] = static_cast<float>(dot);
    }
    absl::Status status =
        RouteToken(layer.routing, logits, {}, scores.data(), ids.data(), weights.data());
    for (int j = 0; status.ok() && j < layer.routing.top_k; ++j) {
      experts_[ids[j]].Apply(layer.activation, ActivationNumerics::kBF16, row, result.data(),
                             bound.data());
      for (int64_t c = 0; c < hidden; ++c) {
        out[c] += static_cast<double>(weights[j]) * result[c];
        tolerance[c] += static_cast<double>(weights[j]) * bound[c];
      }
    }
    return status;
  }

  MoeModelSpec model_;
  std::string name_ = "mixed";
  std::vector<RecordLayout> layouts_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<kernels::ReferenceExpert> experts_;
  std::vector<float> gate_;
};

/// The last one again where it is the same: cases of one shape share the work of making it.
std::shared_ptr<MixedSource> SourceOf(const Shape& shape, const std::vector<std::string>& schemes,
                                      double skew) {
  const auto key = std::make_tuple(shape.hidden, shape.intermediate, shape.experts, shape.top_k,
                                   shape.activation, schemes, skew);
  static auto last = std::make_pair(key, std::shared_ptr<MixedSource>());
  if (last.second == nullptr || last.first != key) {
    last = {key, std::make_shared<MixedSource>(shape, schemes, skew)};
  }
  return last.second;
}

/// relative: what the norm of the error may be.
void CheckCase(const Shape& shape, const std::vector<std::string>& schemes, int64_t rows,
               double skew = 0, double relative = 2e-3) {
  const auto source = SourceOf(shape, schemes, skew);
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.max_tokens_per_forward = rows;
  std::mt19937_64 rng(rows);
  std::vector<float> x = SyntheticSource::RandomFloats(rows * shape.hidden, 1.0f, &rng);
  for (float& v : x) v += 0.25f;  // a mean, so that zero points matter
  // All rows of a small case, some of a large one, the last among them; fewer where one costs more.
  const int64_t weights = shape.hidden * shape.intermediate * shape.top_k;
  const int64_t most = weights > (int64_t{1} << 20) ? 16 : 48;
  std::vector<int64_t> checked;
  for (int64_t r = rows - 1; r >= 0; r -= (rows + most - 1) / most) checked.push_back(r);
  std::vector<double> reference, tolerance;
  source->Reference(x, checked, &reference, &tolerance);
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
    std::vector<float> sample;
    for (const int64_t r : checked) {
      sample.insert(sample.end(), outputs.begin() + r * shape.hidden,
                    outputs.begin() + (r + 1) * shape.hidden);
    }
    int64_t outside = 0;
    for (size_t i = 0; i < sample.size(); ++i) {
      // The bound is of one rounding; magic numbers cost h some more. Negated, so that NaN is
      // outside.
      if (!(std::fabs(sample[i] - reference[i]) <= 4 * tolerance[i])) ++outside;
    }
    CHECK(outside == 0);
    // h is rounded at another last bit now and then; everything else is fp32.
    CHECK(RelativeError(sample, reference) < relative);
    if (resident.empty()) resident = outputs;
    CHECK(std::memcmp(resident.data(), outputs.data(), outputs.size() * sizeof(float)) == 0);
  }
}

const std::vector<std::string> kWeightOnly = {
    "bf16",           "w8a16_g128",      "w8a16_g-1",      "w4a16_g128",     "w4a16_g128_asym",
    "w4a16_g-1_asym", "w3a16_g128_asym", "w3a16_g-1_asym", "w2a16_g64_asym", "w2a16_g128_asym",
    "w2a16_g-1_asym"};
// As published files have them.
const std::vector<std::string> kImported = {"fp8_b128",
                                            "mxfp4",
                                            "nvfp4",
                                            "w4a16_g32",
                                            "w4a16_g32_zp",
                                            "w4a16_g32_f16",
                                            "w4a16_g64",
                                            "w4a16_g64_zp",
                                            "w4a16_g32_zp_f16",
                                            "w4a16_g64_f16",
                                            "w4a16_g128_zp",
                                            "w4a16_g128_f16",
                                            "w4a16_g64_zp_f16",
                                            "w4a16_g128_zp_f16"};
// One step of these in a channel of h weighs more: 1/16 of it, or 1/7 of the largest.
const std::vector<std::string> kQuantized = {"w8a8", "w8a8_fp8", "w4a8_g128"};
const std::vector<std::string> kCoarse = {"w4a4_g128", "w4a4"};

TEST_CASE("every scheme of the library runs") {
  size_t known = 0;
  for (const auto* list : {&kWeightOnly, &kImported, &kQuantized, &kCoarse}) known += list->size();
  CHECK(known == Scheme::All().size());
}

TEST_CASE("every scheme, alone") {
  for (const std::string suffix : {"", "+h"}) {
    for (const auto* list : {&kWeightOnly, &kImported}) {
      for (const std::string& scheme : *list) {
        CheckCase({256, 128, 8, 2}, {scheme + suffix}, 7);
        CheckCase({384, 208, 6, 3}, {scheme + suffix}, 33);
      }
    }
    for (const std::string& scheme : kQuantized) {
      CheckCase({256, 128, 8, 2}, {scheme + suffix}, 7, 0, 1e-2);
      CheckCase({384, 208, 6, 3}, {scheme + suffix}, 33, 0, 1e-2);
    }
    for (const std::string& scheme : kCoarse) {
      CheckCase({256, 128, 8, 2}, {scheme + suffix}, 7, 0, 5e-2);
      CheckCase({384, 208, 6, 3}, {scheme + suffix}, 33, 0, 5e-2);
    }
  }
}

TEST_CASE("schemes mixed in one launch") {
  CheckCase({512, 256, 20, 4}, kWeightOnly, 1);
  CheckCase({512, 256, 20, 4}, kWeightOnly, 40);
  CheckCase({512, 256, 20, 4, Activation::kGelu}, kWeightOnly, 9);
  std::vector<std::string> all = kWeightOnly;
  for (const auto* list : {&kQuantized, &kCoarse}) {
    for (const std::string& scheme : *list) {
      all.push_back(scheme);
      all.push_back(scheme + "+h");
    }
  }
  all.push_back("w2a16_g64_asym+h");
  all.push_back("bf16+h");
  CheckCase({512, 256, 44, 4}, all, 50, 0, 5e-2);
}

// Few and small, for compute-sanitizer.
TEST_CASE("small cases of the schemes of files and of int8", "[small]") {
  for (const char* scheme :
       {"fp8_b128", "mxfp4", "nvfp4", "w4a16_g32_zp_f16", "w4a16_g64", "w8a8"}) {
    CheckCase({72, 40, 4, 1}, {scheme}, 5, 0, 1e-2);
    CheckCase({200, 88, 3, 2}, {scheme}, 70, 0, 1e-2);
  }
}

TEST_CASE("schemes of files, from one token to 2048, over odd shapes") {
  for (const std::string& scheme : kImported) {
    for (const int64_t rows : {1, 2, 8, 16, 17, 64, 129, 512, 2048}) {
      CheckCase({192, 144, 8, 2}, {scheme}, rows);
    }
    CheckCase({72, 40, 4, 1}, {scheme}, 5);
    CheckCase({72, 40, 4, 1}, {scheme}, 200);
    CheckCase({144, 16, 4, 2}, {scheme}, 3);
    CheckCase({192, 16, 3, 2, Activation::kGeluTanh}, {scheme}, 131);
    CheckCase({1040, 336, 4, 2}, {scheme}, 17);
    CheckCase({1040, 336, 4, 2}, {scheme}, 129);
  }
  CheckCase({512, 256, 28, 4}, kImported, 40);
  CheckCase({256, 192, 28, 4}, kImported, 700);
  for (const std::string scheme : {"fp8_b128", "mxfp4", "nvfp4", "w4a16_g32_zp_f16"}) {
    CheckCase({2048, 768, 4, 2}, {scheme}, 5);
    CheckCase({1024, 1408, 4, 2}, {scheme}, 150);
  }
}

TEST_CASE("from one token to 8192") {
  for (const int64_t rows : {1, 2, 8, 64, 512, 8192}) {
    CheckCase({256, 192, 16, 4}, {"w4a16_g128", "bf16", "w8a8"}, rows, 0, 1e-2);
  }
}

TEST_CASE("int8 prompts, by tokens an expert") {
  for (const int64_t rows : {29, 61, 120, 300, 513, 1200}) {
    CheckCase({256, 192, 4, 2}, {"w8a8"}, rows, 0, 1e-2);
  }
  CheckCase({2048, 768, 4, 2}, {"w8a8"}, 150, 0, 1e-2);
  CheckCase({1040, 336, 6, 3}, {"w8a8"}, 90, 0, 1e-2);
  CheckCase({72, 40, 4, 1}, {"w8a8"}, 200, 0, 1e-2);
  CheckCase({192, 80, 3, 2, Activation::kGeluTanh}, {"w8a8"}, 131, 0, 1e-2);
  CheckCase({256, 192, 9, 3}, {"w8a8", "w8a8+h", "bf16", "w4a8_g128"}, 300, 0, 1e-2);
  CheckCase({128, 64, 32, 2}, {"w8a8"}, 600, 0.5, 1e-2);
}

// Enough tokens an expert for family P (kernels/tuning/prompt.h), in every tiling of it.
TEST_CASE("prompts, by tokens an expert") {
  for (const char* scheme : {"bf16", "w8a16_g128", "w4a16_g128", "w8a16_g-1"}) {
    for (const int64_t rows : {29, 61, 120, 300, 513, 1200}) {
      CheckCase({256, 192, 4, 2}, {scheme}, rows);
    }
    CheckCase({2048, 768, 4, 2}, {scheme}, 150);
    CheckCase({1040, 336, 6, 3}, {scheme}, 90);
    CheckCase({72, 40, 4, 1}, {scheme}, 200);
    CheckCase({192, 16, 3, 2, Activation::kGeluTanh}, {scheme}, 131);
    CheckCase({192, 80, 3, 2, Activation::kGelu}, {scheme}, 131);
  }
  for (const int64_t rows : {2048, 4096, 8192}) {
    CheckCase({256, 192, 16, 4}, {"bf16"}, rows);
    CheckCase({256, 192, 16, 4}, {"w4a16_g128", "bf16", "w8a16_g128"}, rows);
  }
}

TEST_CASE("prompts of experts of which only some have a product of family P") {
  CheckCase({256, 192, 9, 3}, {"bf16", "w2a16_g64_asym", "w4a16_g128"}, 90);
  CheckCase({256, 192, 9, 3}, {"w4a16_g128", "w8a8", "bf16+h"}, 200, 0, 1e-2);
  CheckCase({128, 64, 32, 2}, {"w4a16_g128", "bf16", "w3a16_g128_asym"}, 600, 0.5);
}

TEST_CASE("K of published models, split over warps") {
  for (const std::string scheme : {"bf16", "w8a16_g128", "w4a16_g128_asym", "w2a16_g64_asym",
                                   "w8a8", "w4a8_g128+h", "w8a8_fp8"}) {
    CheckCase({2048, 768, 4, 2}, {scheme}, 5, 0, 1e-2);
    CheckCase({1024, 1408, 4, 2}, {scheme}, 19, 0, 1e-2);
  }
}

TEST_CASE("shapes that are not multiples of the tiles") {
  for (const char* scheme : {"bf16", "w4a16_g128", "w2a16_g64_asym", "w3a16_g128_asym", "w8a8",
                             "w4a8_g128", "w8a8_fp8", "w4a16_g128+h", "w4a8_g128+h"}) {
    CheckCase({72, 40, 4, 1}, {scheme}, 5, 0, 1e-2);
    CheckCase({144, 16, 4, 2}, {scheme}, 3, 0, 1e-2);
    CheckCase({1040, 336, 4, 2}, {scheme}, 17, 0, 1e-2);
  }
}

TEST_CASE("skewed routing: one expert gets almost everything, others nothing") {
  CheckCase({128, 64, 32, 2}, kWeightOnly, 128, 0.5);
  CheckCase({128, 64, 32, 2}, {"bf16"}, 600, 0.5);
}

}  // namespace
}  // namespace moert::test
