// Outputs of shards on a device add up to the output of one engine.
#include "moert/parallel/shard.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "device_array.h"
#include "device_step.h"
#include "shard_inputs.h"
#include "tests/support/catch.h"
#include "tests/support/shards.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

EngineOptions Options(int64_t rows, const Shard& shard, double fraction) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = "on-demand";
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = rows;
  options.shard = shard;
  return options;
}

/// Outputs of all layers, fed with the same inputs. `routing`: null where the library routes.
std::vector<float> Run(const std::shared_ptr<const ExpertSource>& source, int64_t rows,
                       const Shard& shard, const Routing* routing, double fraction) {
  auto engine = Engine::Create(source, Options(rows, shard, fraction));
  REQUIRE_OK(engine.status());
  const int64_t hidden = source->model().layers[0].hidden;
  DeviceRowsBuffer device(static_cast<size_t>(rows * hidden));
  StepInfo info;
  info.rows = rows;
  info.stream = device.stream();
  auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  std::mt19937_64 random(17);
  std::vector<float> outputs;
  for (int l = 0; l < source->model().num_layers(); ++l) {
    device.Set(SyntheticSource::RandomFloats(rows * hidden, 1, &random));
    const MatrixView x{device.x(), DType::kF32, rows, hidden, hidden};
    const MutableMatrixView y{device.y(), DType::kF32, rows, hidden, hidden};
    RoutedInput given;
    if (routing != nullptr) {
      given.ids = routing->ids;
      given.weights = routing->weights;
    }
    REQUIRE_OK(routing == nullptr ? (*engine)->Forward(*step, l, x, y)
                                  : (*engine)->ForwardRouted(*step, l, x, given, y));
    const std::vector<float> part = device.Get();
    outputs.insert(outputs.end(), part.begin(), part.end());
  }
  REQUIRE_OK((*engine)->EndStep(*step));
  return outputs;
}

/// The largest difference of the shards' sum from the whole, over the whole's largest value.
double Difference(const std::shared_ptr<const ExpertSource>& source, int64_t rows,
                  const std::vector<Shard>& shards, const Routing* routing, double fraction = 0.5) {
  REQUIRE_OK(CheckShards(source->model(), shards));
  const std::vector<float> whole = Run(source, rows, {}, routing, 1);
  std::vector<float> sum(whole.size());
  for (const Shard& shard : shards) {
    const std::vector<float> part = Run(source, rows, shard, routing, fraction);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  double worst = 0, largest = 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    const double difference = std::abs(double{sum[i]} - whole[i]);
    worst = difference <= worst ? worst : difference;  // NaN too
    largest = std::max(largest, std::abs(double{whole[i]}));
  }
  return worst / largest;
}

TEST_CASE("experts, channels and shared experts in shards add up, few rows and many") {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const std::vector<Shard> experts = {Experts(0, 5, false), Experts(5, 11, true)};
  const std::vector<Shard> channels = {Channels(0, 128), Channels(128, 128)};
  std::vector<Shard> grid;
  for (const int first : {0, 8}) {
    for (const int64_t channel : {0, 128}) {
      Shard shard = Experts(first, 8, first == 0);
      shard.first_channel = channel;
      shard.num_channels = 128;
      grid.push_back(shard);
    }
  }
  for (const int64_t rows : {5, 512}) {
    CAPTURE(rows);
    const Routing routing = RandomRouting(source->model(), rows);
    // One fp32 rounding for each addition that another order makes. Products of many rows are
    // rounded to bf16 for each expert: two halves of one differ from the whole by the roundings of
    // each, 2^-9 of the values, spread over the sum.
    const double bound = 4e-6, of_halves = rows < 64 ? bound : 3.0 / 512;
    CHECK(Difference(source, rows, experts, &routing) < bound);
    CHECK(Difference(source, rows, channels, &routing) < of_halves);
    CHECK(Difference(source, rows, channels, nullptr) < of_halves);  // routed on the device
    CHECK(Difference(source, rows, grid, &routing) < of_halves);
  }
  // A part is not the whole.
  const Routing routing = RandomRouting(source->model(), 5);
  const std::vector<float> whole = Run(source, 5, {}, &routing, 1);
  CHECK(Run(source, 5, channels[0], &routing, 1) != whole);
}

TEST_CASE("ids of the whole model on the device are renumbered there") {
  const SyntheticShape shape = ShardedShape();
  const auto source = std::make_shared<SyntheticSource>(shape);
  Shard shard;
  shard.experts = {{1, 3, 8, 15}, {0, 1, 2}, {7, 8, 9, 10, 11, 12}};
  for (const int64_t rows : {5, 80}) {  // one launch routes few rows
    for (const double fraction : {0.5, 1.0}) {
      CAPTURE(rows, fraction);
      EngineOptions options = Options(rows, shard, fraction);
      if (fraction == 1) options.strategy = "resident";
      auto engine = Engine::Create(source, options);
      REQUIRE_OK(engine.status());
      Routing routing = RandomRouting(source->model(), rows);
      routing.ids[1] = -1;
      const size_t pairs = routing.ids.size();
      DeviceRowsBuffer device(static_cast<size_t>(rows * shape.hidden));
      DeviceArray<int32_t> ids(routing.ids), used(pairs);
      const DeviceArray<float> weights(routing.weights);
      const std::vector<float> rows_of_x(static_cast<size_t>(rows * shape.hidden), 0.3f);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the stream does not wait for the copies
      StepInfo info;
      info.rows = rows;
      info.stream = device.stream();
      auto step = (*engine)->BeginStep(info);
      REQUIRE_OK(step.status());
      const MatrixView x{device.x(), DType::kF32, rows, shape.hidden, shape.hidden};
      const MutableMatrixView y{device.y(), DType::kF32, rows, shape.hidden, shape.hidden};
      RoutedInput host, there;
      host.ids = routing.ids;
      host.weights = routing.weights;
      there.place = Place::kDevice;
      there.ids = {ids.get(), pairs};
      there.weights = {weights.get(), pairs};
      there.used_ids = {used.get(), pairs};
      for (int l = 0; l < shape.layers; ++l) {
        std::vector<int32_t> expected_used(pairs);
        host.used_ids = absl::MakeSpan(expected_used);
        device.Set(rows_of_x);
        REQUIRE_OK((*engine)->ForwardRouted(*step, l, x, host, y));
        const std::vector<float> expected = device.Get();
        const int64_t syncs = (*engine)->stats().host_syncs;
        device.Set(rows_of_x);
        REQUIRE_OK((*engine)->ForwardRouted(*step, l, x, there, y));
        CHECK(device.Get() == expected);
        CHECK(used.Get() == expected_used);
        if (fraction == 1) CHECK((*engine)->stats().host_syncs == syncs);
      }
      REQUIRE_OK((*engine)->EndStep(*step));
      const EngineStats stats = (*engine)->stats();
      CHECK(stats.peak_bytes <= stats.budget_bytes);
    }
  }
}

TEST_CASE("an engine over some experts takes its routing from the host") {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  auto engine = Engine::Create(source, Options(1, Experts(0, 8, true), 1));
  REQUIRE_OK(engine.status());
  DeviceRowsBuffer device(128);
  StepInfo info;
  info.rows = 1;
  info.stream = device.stream();
  auto step = (*engine)->BeginStep(info);
  REQUIRE_OK(step.status());
  const MatrixView x{device.x(), DType::kF32, 1, 128, 128};
  const MutableMatrixView y{device.y(), DType::kF32, 1, 128, 128};
  const absl::Status unrouted = (*engine)->Forward(*step, 0, x, y);
  CHECK(unrouted.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(unrouted.message()).find("ForwardRouted") != std::string::npos);
  FetchInput fetch;
  fetch.place = Place::kDevice;
  SlotView view;
  CHECK((*engine)->Fetch(*step, 0, fetch, &view).code() == absl::StatusCode::kUnimplemented);
  REQUIRE_OK((*engine)->EndStep(*step));
}

}  // namespace
}  // namespace moert::test
