// Outputs of shards add up to the output of one engine.
#include "moert/parallel/shard.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/source/expert_source.h"
#include "support/catch.h"
#include "support/expert_record.h"
#include "support/shards.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::Channels;
using test::Experts;
using test::SyntheticShape;
using test::SyntheticSource;

constexpr int64_t kRows = 5;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.intermediate = 256;
  shape.shared_intermediate = 128;
  return shape;
}

std::unique_ptr<Engine> Open(std::shared_ptr<const ExpertSource> source, const Shard& shard,
                             double fraction = 0.6) {
  EngineOptions options;
  options.threads = 1;
  options.max_tokens_per_forward = kRows;
  options.shard = shard;
  options.budget = Budget::Fraction(fraction);
  auto engine = Engine::Create(std::move(source), options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

/// Outputs of all layers, fed with the same inputs.
std::vector<float> Run(Engine* engine, const RoutedInput* routing = nullptr) {
  std::mt19937_64 random(17);
  std::vector<float> outputs;
  auto step = engine->BeginStep({Phase::kDecode, kRows});
  REQUIRE_OK(step.status());
  for (int l = 0; l < engine->model().num_layers(); ++l) {
    const int64_t hidden = engine->model().layers[l].hidden;
    const std::vector<float> x = SyntheticSource::RandomFloats(kRows * hidden, 1, &random);
    std::vector<float> y(x.size());
    const MatrixView in{x.data(), DType::kF32, kRows, hidden, hidden};
    const MutableMatrixView out{y.data(), DType::kF32, kRows, hidden, hidden};
    REQUIRE_OK(routing == nullptr ? engine->Forward(*step, l, in, out)
                                  : engine->ForwardRouted(*step, l, in, *routing, out));
    outputs.insert(outputs.end(), y.begin(), y.end());
  }
  REQUIRE_OK(engine->EndStep(*step));
  return outputs;
}

std::vector<float> Sum(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum = parts[0];
  for (size_t p = 1; p < parts.size(); ++p) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += parts[p][i];
  }
  return sum;
}

/// The largest difference, over the largest value.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return worst / largest;
}

std::vector<std::vector<float>> RunShards(const std::shared_ptr<const ExpertSource>& source,
                                          const std::vector<Shard>& shards) {
  REQUIRE_OK(CheckShards(source->model(), shards));
  std::vector<std::vector<float>> parts;
  for (const Shard& shard : shards) parts.push_back(Run(Open(source, shard).get()));
  return parts;
}

TEST_CASE("experts in shards: with two experts a token the sum is the same to the bit") {
  SyntheticShape shape = Shape();
  shape.shared_intermediate = 0;
  const auto source = std::make_shared<SyntheticSource>(shape);
  const std::vector<float> whole = Run(Open(source, {}).get());
  CHECK(Sum(RunShards(source, {Experts(0, 4, true), Experts(4, 4, false)})) == whole);
  Shard odd, even;
  odd.experts = {{1, 3, 5, 7}, {0, 1}, {7}};
  even.experts = {{0, 2, 4, 6}, {2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6}};
  CHECK(Sum(RunShards(source, {odd, even})) == whole);
}

TEST_CASE("experts, channels and shared experts in shards add up") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const std::vector<float> whole = Run(Open(source, {}).get());
  // One fp32 rounding for each addition that another order makes.
  constexpr double kBound = 2e-6;
  CHECK(Difference(Sum(RunShards(source, {Experts(0, 3, false), Experts(3, 5, true)})), whole) <
        kBound);
  CHECK(Difference(Sum(RunShards(source, {Channels(0, 128), Channels(128, 128)})), whole) < kBound);
  std::vector<Shard> grid;
  for (const int first : {0, 4}) {
    for (const int64_t channel : {0, 128}) {
      Shard shard = Experts(first, 4, first == 0);
      shard.first_channel = channel;
      shard.num_channels = 128;
      grid.push_back(shard);
    }
  }
  CHECK(Difference(Sum(RunShards(source, grid)), whole) < kBound);
  // A part is not the whole.
  CHECK(Difference(Run(Open(source, grid[0]).get()), whole) > 0.1);
}

/// Two experts of one format in one layer that the host routes.
class FormatSource final : public ExpertSource {
 public:
  static constexpr int64_t kHidden = 64, kIntermediate = 256;

  explicit FormatSource(const ExpertFormat& format) {
    MoeLayerSpec layer;
    layer.num_experts = 2;
    layer.hidden = kHidden;
    layer.intermediate = kIntermediate;
    layer.routing.kind = RoutingKind::kExternal;
    layer.routing.top_k = 2;
    model_.layers = {layer};
    for (uint32_t e = 0; e < 2; ++e) {
      experts_.push_back(test::RandomExpert(kHidden, kIntermediate, 40 + e, format));
    }
  }
  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 1; }
  absl::string_view version_name(int) const override { return "format"; }
  const RecordLayout& layout(int, int expert, int) const override {
    return experts_[expert].layout;
  }
  absl::Status ReadRecord(int, int expert, int, absl::Span<std::byte> dst) const override {
    std::memcpy(dst.data(), experts_[expert].record(), experts_[expert].layout.bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int) const override { return LayerConstants(); }

 private:
  MoeModelSpec model_;
  std::string name_ = "format";
  std::vector<test::ExpertRecord> experts_;
};

TEST_CASE("channels of every scheme add up") {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int64_t t = 0; t < kRows; ++t) {
    ids.insert(ids.end(), {0, 1});
    weights.insert(weights.end(), {0.75f, 0.25f});
  }
  RoutedInput routing;
  routing.ids = ids;
  routing.weights = weights;
  std::vector<ExpertFormat> formats;
  for (const Scheme& scheme : Scheme::All()) formats.push_back(ExpertFormat::Uniform(scheme));
  formats.push_back(ExpertFormat::Uniform(*Scheme::Parse("w4a4_g128"), /*hadamard=*/true));
  for (const ExpertFormat& format : formats) {
    CAPTURE(format.gate.Name(), format.hadamard);
    const auto source = std::make_shared<FormatSource>(format);
    if (format.down.imported()) {
      EngineOptions options;
      options.shard = Channels(0, 128);
      const absl::Status refused = Engine::Create(source, options).status();
      CHECK(refused.code() == absl::StatusCode::kUnimplemented);
      CHECK_THAT(std::string(refused.message()), Catch::Contains(format.down.Name()));
      continue;
    }
    const std::vector<float> whole = Run(Open(source, {}, 1.0).get(), &routing);
    std::vector<std::vector<float>> parts;
    for (const int64_t first : {0, 128}) {
      parts.push_back(Run(Open(source, Channels(first, 128), 1.0).get(), &routing));
    }
    // Where activations have a scale a row, that of the row's slice is another one: steps of a
    // 127th (a 7th for four bits, a 16th of the value for e4m3) of the largest of some 256 normal
    // values, half a step each way, spread over the sum. Other sums differ by their order alone.
    const bool row_scale = format.down.act_bits < 16 && format.down.group < 0;
    const double bound = !row_scale                  ? 5e-6
                         : format.down.act_bits == 4 ? 0.4
                         : format.down.fp8           ? 0.05
                                                     : 0.025;
    CHECK(Difference(Sum(parts), whole) < bound);
  }
}

TEST_CASE("the gates of the whole model are paid for, whoever chooses the strategy") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options;
  options.threads = 1;
  options.max_tokens_per_forward = kRows;
  options.shard = Experts(0, 3, true);
  options.strategy = "auto";
  const auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  options.strategy = (*engine)->strategy();
  const auto plan = Engine::Plan(*source, options);
  REQUIRE_OK(plan.status());
  CHECK((*engine)->memory().constant_bytes == plan->constant_bytes);
}

TEST_CASE("an engine over a shard speaks of the experts of the whole model") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto engine = Open(source, Experts(2, 3, true), 1.0);
  CHECK(engine->model() == source->model());
  auto step = engine->BeginStep({Phase::kDecode, kRows});
  REQUIRE_OK(step.status());
  std::vector<ExpertView> views;
  const std::vector<int32_t> own = {4, 2}, foreign = {4, 5}, unknown = {8};
  auto lease = engine->AcquireExperts(*step, 1, own, &views);
  REQUIRE_OK(lease.status());
  CHECK(views[0].expert == 4);
  const auto& record = source->record(1, 4, 0);
  CHECK(std::equal(record.begin(), record.end(), views[0].record));
  REQUIRE_OK(engine->ReleaseExperts(*lease));
  CHECK(std::string(engine->AcquireExperts(*step, 1, foreign, &views).status().message())
            .find("expert 5 is not of this shard") != std::string::npos);
  CHECK_FALSE(engine->AcquireExperts(*step, 1, unknown, &views).ok());
  REQUIRE_OK(engine->PrefetchHint(0, foreign));
  CHECK_FALSE(engine->PrefetchHint(0, unknown).ok());
  const auto residency = engine->ResidencyOf(1);
  REQUIRE_OK(residency.status());
  REQUIRE(residency->size() == 8);
  CHECK((*residency)[4] == Residency::kHigh);
  CHECK((*residency)[5] == Residency::kAbsent);

  // A given routing: what is not here adds nothing, and what was used comes back as it was named.
  const int64_t hidden = Shape().hidden;
  std::vector<float> x(kRows * hidden, 0.5f), y(x.size()), z(x.size());
  std::vector<int32_t> ids, used(2 * kRows);
  for (int64_t t = 0; t < kRows; ++t) ids.insert(ids.end(), {3, t % 2 == 0 ? 7 : -1});
  const std::vector<float> weights(2 * kRows, 0.5f);
  RoutedInput routing;
  routing.ids = ids;
  routing.weights = weights;
  routing.used_ids = absl::MakeSpan(used);
  const MatrixView in{x.data(), DType::kF32, kRows, hidden, hidden};
  const MutableMatrixView out{y.data(), DType::kF32, kRows, hidden, hidden};
  REQUIRE_OK(engine->ForwardRouted(*step, 0, in, routing, out));
  for (int64_t t = 0; t < kRows; ++t) {
    CHECK(used[2 * t] == 3);
    CHECK(used[2 * t + 1] == -1);
  }
  ids[3] = 8;
  const absl::Status status = engine->ForwardRouted(*step, 0, in, routing, out);
  CHECK(std::string(status.message()).find("expert 8 does not exist") != std::string::npos);
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("the gates that a shard routes by are in its budget") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  EngineOptions options;
  const auto whole = Engine::Plan(*source, options);
  options.shard = Experts(0, 2, true);
  const auto part = Engine::Plan(*source, options);
  REQUIRE_OK(whole.status());
  REQUIRE_OK(part.status());
  CHECK(part->constant_bytes == whole->constant_bytes);
  CHECK(part->total_experts == 6);
  CHECK(Open(source, Experts(0, 2, true))->memory().constant_bytes == whole->constant_bytes);
}

TEST_CASE("shards that are none, overlap or leave something out are refused by name") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const MoeModelSpec& model = source->model();
  const auto fails = [&](const std::vector<Shard>& shards, const char* text) {
    const absl::Status status = CheckShards(model, shards);
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(std::string(status.message()).find(text) != std::string::npos);
  };
  fails({Experts(0, 5, true), Experts(4, 4, false)},
        "0 and 1 overlap: both own expert 4 of layer 0");
  fails({Experts(0, 4, true), Experts(5, 3, false)}, "no shard owns expert 4 of layer 0");
  fails({Experts(0, 4, true), Experts(4, 4, true)}, "the shared experts of layer 0");
  fails({Experts(0, 4, false), Experts(4, 4, false)},
        "no shard owns the shared experts of layer 0");
  fails({Experts(6, 4, true)}, "shard 0: shard: experts [6, 10) of layer 0, which has [0, 8)");
  fails({Channels(0, 128), Channels(64, 192)}, "0 and 1 overlap");
  fails({Channels(0, 128)}, "channels from 128 on, of 256");
  const int64_t most = std::numeric_limits<int64_t>::max();
  fails({Channels(64, most)},
        "9223372036854775807 channels from 64 on: layer 0 has 256");  // no end in int64
  Shard both = Experts(0, 2, true);
  both.experts = {{0}, {0}, {0}};
  fails({both}, "by range and by list");
  Shard list;
  list.experts = {{0}, {0}};
  fails({list}, "experts of 2 layers, the model has 3");
  list.experts = {{0}, {1, 1}, {0}};
  fails({list}, "expert 1 of layer 1: legal are ascending ones");
  list.experts = {{0}, {}, {0}};
  fails({list}, "no expert of layer 1");

  EngineOptions options;
  options.shard = Channels(32, 64);
  CHECK_FALSE(Engine::Create(source, options).ok());
  options.shard = Experts(0, 4, true);
  options.strategy = "importance";
  const auto engine = Engine::Create(source, options);
  CHECK(std::string(engine.status().message()).find("does not substitute") != std::string::npos);
}

TEST_CASE("create says how far it is, and can be given up") {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  for (const char* strategy : {"resident", "on-demand"}) {
    EngineOptions options;
    options.threads = 1;
    options.strategy = strategy;
    std::vector<int64_t> loaded;
    options.open_progress = [&](const OpenProgress& progress) {
      CHECK(progress.total_experts == 24);
      loaded.push_back(progress.loaded_experts);
      return true;
    };
    REQUIRE_OK(Engine::Create(source, options).status());
    CHECK(loaded == (options.strategy == "resident" ? std::vector<int64_t>{8, 16, 24}
                                                    : std::vector<int64_t>{}));
    options.open_progress = [&](const OpenProgress&) { return false; };
    CHECK(Engine::Create(source, options).ok() == (options.strategy != "resident"));
  }
}

}  // namespace
}  // namespace moert
