// Calibration tokens through a model block by block, and what quantizing with them must not do.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cli/pack/host_model.h"
#include "moert/thread_pool.h"
#include "offline/calibration_stream.h"
#include "offline/expert_quantizer.h"
#include "offline/moe_block.h"
#include "offline/rtn.h"
#include "offline/sensitivity.h"
#include "support/catch.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert::offline {
namespace {

using cli::HostProducts;

TEST_CASE(
    "blocks one after the other are the model: its reference loss, on any number of threads") {
  const std::vector<int32_t> file = ReadEvalTokens("wikitext2");
  const CalibrationTokens tokens{512, {file.begin(), file.begin() + 512}};
  double first = 0;
  for (const int threads : {1, 3}) {
    TinyModel model(threads);
    auto experts = CheckpointExperts::Create(model.checkpoint.get(), &model.config);
    REQUIRE_OK(experts.status());
    const auto host = cli::MakeHostModel(std::move(model.decoder), nullptr, tokens.window);
    auto blocks = MoeBlocks::Create(experts->get(), {model.pool.get(), host->products()});
    REQUIRE_OK(blocks.status());
    CalibrationStream stream({host.get(), &model.config, model.pool.get()}, &tokens);
    for (int l = 0; l < model.config.moe.num_layers(); ++l) {
      const MoeLayerSpec& layer = model.config.moe.layers[static_cast<size_t>(l)];
      int next = 0;
      REQUIRE_OK((*blocks)->Run(
          l, &stream,
          [&](int e, const ExpertRows& rows, Floats* x, ThreadPool* single) -> absl::Status {
            ExpertWeights stored;
            ExpertMatrices weights;
            absl::Status status = (*experts)->ReadExpert(l, e, &stored);
            if (status.ok()) status = WidenExpert(stored, &weights);
            if (!status.ok()) return status;
            const auto count = static_cast<int64_t>(rows.rows.size());
            const Compute compute{single, host->products()};
            const Floats h = GluForward(compute, layer, weights.gate, weights.up, x->data(), count);
            MatMul(compute, weights.down, layer.hidden, layer.intermediate, h.data(), count,
                   x->data());
            return absl::OkStatus();
          },
          [&](int e) {
            CHECK(e == next++);
            return absl::OkStatus();
          }));
      CHECK(next == layer.num_experts);
    }
    stream.FinishHidden();
    const double nll = stream.Nll();
    const double expected = ReadReference()["domains"]["wikitext2"]["nll_window0_cpu"];
    CHECK(nll == Approx(expected).margin(2e-5));
    if (threads == 1) first = nll;
    CHECK(nll == first);
  }
}

TEST_CASE("sequences that pass a layer together are those that pass it alone, to the bit") {
  TinyModel model(2);
  const int64_t rows = 600, hidden = model.config.hidden_size;
  const std::vector<int32_t> file = ReadEvalTokens("wikitext2");
  const auto host = cli::MakeHostModel(std::move(model.decoder), nullptr, rows);
  constexpr int64_t kSequences = 28;  // the host takes 27 at once
  std::vector<float> alone(static_cast<size_t>(kSequences * rows * hidden));
  host->Embed(absl::MakeConstSpan(file).first(static_cast<size_t>(kSequences * rows)),
              alone.data());
  std::vector<float> together = alone, normed(alone.size()), normed_together(alone.size());
  for (const int layer : {0, 1}) {
    host->CalibrationModel::AttentionOfMany(layer, kSequences, rows, hidden, alone.data(),
                                            normed.data());
    host->AttentionOfMany(layer, kSequences, rows, hidden, together.data(), normed_together.data());
    CHECK(std::memcmp(alone.data(), together.data(), alone.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(normed.data(), normed_together.data(), normed.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("calibration tokens: windows of each file in turn, cut to the amount asked for") {
  test::TempDir dir;
  const auto write = [&](const char* name, int first, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>((first + i) & 255);
      bytes += static_cast<char>((first + i) >> 8);
    }
    test::WriteFile(dir / name, bytes);
    return dir / name;
  };
  const std::vector<std::string> files = {write("a", 0, 10), write("b", 100, 5)};
  auto tokens = ReadCalibrationTokens(files, 4096, 4, 0);
  REQUIRE_OK(tokens.status());
  CHECK(tokens->ids == std::vector<int32_t>{0, 1, 2, 3, 100, 101, 102, 103, 4, 5, 6, 7});
  CHECK(tokens->windows() == 3);
  tokens = ReadCalibrationTokens(files, 4096, 4, 9);
  REQUIRE_OK(tokens.status());
  CHECK(tokens->ids == std::vector<int32_t>{0, 1, 2, 3, 100, 101, 102, 103});
  CHECK_FALSE(ReadCalibrationTokens(files, 4096, 4, 3).ok());
  CHECK_FALSE(ReadCalibrationTokens(files, 4096, 6, 0).ok());  // b is shorter
  CHECK_FALSE(ReadCalibrationTokens(files, 104, 4, 0).ok());   // a token beyond the vocabulary
  for (const auto& [window, count] : {std::pair<int64_t, int64_t>{0, 0}, {-4, 0}, {4, -1}}) {
    const auto refused = ReadCalibrationTokens(files, 4096, window, count).status();
    CHECK_THAT(std::string(refused.message()), Catch::Contains("legal are"));
  }
}

// One random expert, and inputs some of whose channels go together (what GPTQ lives on).
struct OneExpert {
  MoeLayerSpec layer;
  ExpertMatrices weights;
  Floats x;
  std::vector<float> token_weights;
  std::unique_ptr<ThreadPool> pool;
  mutable HostProducts products;

  explicit OneExpert(int64_t tokens) {
    layer.hidden = 128;
    layer.intermediate = 64;
    std::mt19937 rng(5);
    std::normal_distribution<float> normal(0, 1);
    const auto fill = [&](std::vector<float>* w, int64_t k) {
      w->resize(static_cast<size_t>(128 * 64));
      for (float& v : *w) v = normal(rng) / std::sqrt(static_cast<float>(k));
    };
    fill(&weights.gate, 128);
    fill(&weights.up, 128);
    fill(&weights.down, 64);
    x.resize(static_cast<size_t>(tokens * 128));
    for (int64_t t = 0; t < tokens; ++t) {
      float common = 0;
      for (int64_t i = 0; i < 128; ++i) {
        common = 0.9f * common + 0.5f * normal(rng);
        x[static_cast<size_t>(t * 128 + i)] = common;
      }
      token_weights.push_back(0.1f + 0.05f * static_cast<float>(t % 10));
    }
    auto created = CreateThreadPool({.threads = 1});
    REQUIRE_OK(created.status());
    pool = *std::move(created);
  }
  Compute compute() const { return {pool.get(), &products}; }
  int64_t tokens() const { return static_cast<int64_t>(token_weights.size()); }

  RecordLayout Layout(const char* scheme, bool hadamard) const {
    auto layout = MakeRecordLayout(layer.hidden, layer.intermediate,
                                   ExpertFormat::Uniform(*Scheme::Parse(scheme), hadamard));
    REQUIRE_OK(layout.status());
    return *layout;
  }
  std::vector<std::byte> Gptq(const RecordLayout& layout, GptqOutcome* outcome) const {
    std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
    Floats inputs = x;
    auto made = EncodeExpertGptq(layer, layout, weights, &inputs, token_weights, compute(), nullptr,
                                 record.data());
    REQUIRE_OK(made.status());
    *outcome = *made;
    return record;
  }
  std::vector<std::byte> Plain(const RecordLayout& layout, QuantMethod method) const {
    std::vector<std::byte> record(static_cast<size_t>(layout.bytes));
    REQUIRE_OK(EncodeMatrix(layout.gate, method, weights.gate, record.data()));
    REQUIRE_OK(EncodeMatrix(layout.up, method, weights.up, record.data()));
    REQUIRE_OK(EncodeMatrix(layout.down, method, weights.down, record.data()));
    return record;
  }
  /// Mean square of the difference to the expert as it was.
  double Error(const RecordLayout& layout, const std::vector<std::byte>& record) const {
    Floats inputs = x;
    auto y = ForwardRecord(layer, layout, record.data(), &inputs, tokens(), compute());
    REQUIRE_OK(y.status());
    const Floats h = GluForward(compute(), layer, weights.gate, weights.up, x.data(), tokens());
    Floats exact(x.size());
    MatMul(compute(), weights.down, layer.hidden, layer.intermediate, h.data(), tokens(),
           exact.data());
    double sum = 0;
    for (size_t i = 0; i < exact.size(); ++i) sum += std::pow(exact[i] - (*y)[i], 2);
    return sum / static_cast<double>(exact.size());
  }
};

TEST_CASE("gptq loses less of an expert's output than what knows no inputs") {
  const OneExpert expert(2048);
  for (const bool hadamard : {false, true}) {
    const RecordLayout layout = expert.Layout("w3a16_g128_asym", hadamard);
    GptqOutcome outcome;
    const double gptq = expert.Error(layout, expert.Gptq(layout, &outcome));
    CHECK(outcome.tokens == 2048);
    CHECK(outcome.gptq_matrices == 3);
    CHECK(outcome.fallback_matrices == 0);
    const RecordLayout plain = expert.Layout("w3a16_g128_asym", false);
    CHECK(gptq < 0.7 * expert.Error(plain, expert.Plain(plain, QuantMethod::kHqq)));
  }
}

TEST_CASE("the Hadamard domain undoes itself: 8 bits are the expert again") {
  const OneExpert expert(64);
  const RecordLayout layout = expert.Layout("w8a16_g128", true);
  GptqOutcome outcome;
  const std::vector<std::byte> record = expert.Gptq(layout, &outcome);
  const double error = expert.Error(layout, record);
  RecordLayout forgotten = layout;  // the same record taken for a plain one is another expert
  forgotten.format.hadamard = false;
  CHECK(error < 1e-4 * expert.Error(forgotten, record));
}

TEST_CASE("too few tokens, or none: hqq") {
  for (const int64_t tokens : {0, 1, 511}) {
    const OneExpert expert(tokens);
    const RecordLayout layout = expert.Layout("w2a16_g64_asym", false);
    GptqOutcome outcome;
    CHECK(expert.Gptq(layout, &outcome) == expert.Plain(layout, QuantMethod::kHqq));
    CHECK(outcome.gptq_matrices == 0);
    CHECK(outcome.fallback_matrices == 3);
  }
}

TEST_CASE("inputs that are no numbers fall back, and never reach a scale") {
  OneExpert expert(600);
  expert.x[12345] = std::numeric_limits<float>::quiet_NaN();
  const RecordLayout layout = expert.Layout("w2a16_g64_asym", false);
  GptqOutcome outcome;
  CHECK(expert.Gptq(layout, &outcome) == expert.Plain(layout, QuantMethod::kHqq));
  CHECK(outcome.fallback_matrices == 3);
}

/// A device that multiplies in fp64, until it refuses.
class FakeDevice final : public host::DeviceProducts {
 public:
  explicit FakeDevice(int good) : good_(good) {}
  absl::Status Multiply(const float* w, int64_t out, int64_t in, const float* x, int64_t rows,
                        float* y) override {
    if (++calls > good_) {
      for (int64_t i = 0; i < rows * out; ++i) y[i] = NAN;  // undefined after an error
      return absl::ResourceExhaustedError("full");
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i) sum += double{x[r * in + i]} * w[o * in + i];
        y[r * out + o] = static_cast<float>(sum);
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<host::KeptWeights>> Keep(const float*, int64_t, int64_t) override {
    return absl::ResourceExhaustedError("keeps nothing");
  }
  absl::Status MultiplyKept(const host::KeptWeights&, const float*, int64_t, float*) override {
    return absl::InternalError("nothing was kept");
  }
  absl::Status first_error() const override { return absl::OkStatus(); }
  const std::string& name() const override { return name_; }
  int calls = 0;

 private:
  const int good_;
  const std::string name_ = "fake";
};

TEST_CASE("Delta does not depend on who multiplies, nor on a device that refuses") {
  const OneExpert expert(2100);  // products of 17 million multiply-adds
  SensitivitySettings settings;
  settings.schemes = {*Scheme::Parse("w2a16_g64_asym"), *Scheme::Parse("w8a8")};
  settings.method = QuantMethod::kRtn;
  settings.probe = 0;
  constexpr int64_t kProbeRows = 1000;
  const auto measure = [&](FakeDevice* device, Floats* x) {
    *x = expert.x;
    HostProducts products(device);
    auto changes = ExpertSensitivity(expert.layer, settings, expert.weights, expert.token_weights,
                                     kProbeRows, {expert.pool.get(), &products}, x);
    REQUIRE_OK(changes.status());
    return *std::move(changes);
  };
  Floats outputs;
  const ExpertChanges cpu = measure(nullptr, &outputs);
  constexpr int kProducts = 3 + 2 * 5 + 1;  // the expert, its schemes, both blocks of the probe
  for (const int good : {1000, 4, 0}) {
    INFO("refuses after " << good);
    FakeDevice device(good);
    Floats y;
    const ExpertChanges changes = measure(&device, &y);
    CHECK(device.calls == kProducts);
    REQUIRE(changes.delta.size() == 6);
    for (size_t i = 0; i < 6; ++i) {
      CHECK(cpu.delta[i] > 0);
      CHECK(changes.delta[i] == Approx(cpu.delta[i]).epsilon(1e-4));
    }
    REQUIRE(changes.gate_up.size() == static_cast<size_t>(kProbeRows * expert.layer.hidden));
    REQUIRE(changes.down.size() == changes.gate_up.size());
    double apart = 0;
    for (size_t i = 0; i < y.size(); ++i)
      apart = std::max(apart, std::abs(double{y[i]} - outputs[i]));
    for (size_t i = 0; i < changes.down.size(); ++i) {
      apart = std::max({apart, std::abs(double{changes.gate_up[i]} - cpu.gate_up[i]),
                        std::abs(double{changes.down[i]} - cpu.down[i])});
    }
    CHECK(apart < 1e-4);
    if (good == 0) CHECK(apart == 0);
  }
  // Few rows are not worth the way to it.
  const OneExpert small(100);
  FakeDevice device(1000);
  HostProducts products(&device);
  Floats x = small.x;
  REQUIRE_OK(ExpertSensitivity(small.layer, settings, small.weights, small.token_weights, 0,
                               Compute{small.pool.get(), &products}, &x)
                 .status());
  CHECK(device.calls == 0);
}

}  // namespace
}  // namespace moert::offline
