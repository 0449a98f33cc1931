// Engine::Fetch on a device: its table, captured calls, what it refuses, and our own records.
#include <algorithm>
#include <array>
#include <string>

#include "device_step.h"
#include "moert/expert_store.h"
#include "opaque_device.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {
namespace {

TEST_CASE("the table in device memory has what is there, and nothing else") {
  const OpaqueModel model;
  const Stream stream;
  const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.5);
  auto step = Begin(engine.get(), 1, stream);
  REQUIRE_OK(step.status());
  std::mt19937 random(5);
  for (int i = 0; i < 12; ++i) {
    const int layer = i % kLayers;
    const std::vector<int32_t> ids = RandomIds(&random, 1);
    FetchInput input;
    input.ids = ids;
    SlotView view;
    REQUIRE_OK(engine->Fetch(*step, layer, input, &view));
    std::array<int32_t, kE> table{};
    REQUIRE(cudaMemcpyAsync(table.data(), view.device_slot_of_expert, sizeof(table),
                            cudaMemcpyDeviceToHost, stream.get()) == cudaSuccess);
    stream.Wait();
    auto residency = engine->ResidencyOf(layer);
    REQUIRE_OK(residency.status());
    for (int e = 0; e < kE; ++e) {
      const bool there = (*residency)[e] == Residency::kHigh;
      CHECK((table[e] >= 0) == there);
      const bool asked = std::count(ids.begin(), ids.end(), e) > 0;
      CHECK(view.slot_of_expert[e] == (asked ? table[e] : -1));
    }
    REQUIRE_OK(engine->ReleaseFetched(*step, layer));
  }
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("a captured call finds the slots of the ids that are there at replay") {
  const OpaqueModel model;
  const ExpectedOnDevice expected(model);
  const Stream stream;
  const auto engine = Open(Source(model, model.InMemory()), "resident", 1);
  REQUIRE(engine->graph_needs().capturable);
  DeviceArray<int32_t> ids(std::vector<int32_t>{0, 1});
  DeviceArray<int32_t> slots(kK);
  DeviceArray<double> out(kK);
  FetchInput input;
  input.place = Place::kDevice;
  input.ids = {ids.get(), kK};
  input.slot_ids = {slots.get(), kK};
  auto step = Begin(engine.get(), 1, stream);
  REQUIRE_OK(step.status());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  SlotView view;
  REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const absl::Status captured = engine->Fetch(*step, 1, input, &view);
  const std::vector<int32_t> host_ids = {0, 1};
  FetchInput host;
  host.ids = host_ids;
  SlotView unused;
  const absl::Status refused = engine->Fetch(*step, 1, host, &unused);
  if (captured.ok()) {
    REQUIRE(LaunchToy(WeightsOf(view), slots.get(), kK, kX, out.get(), stream.get()) ==
            cudaSuccess);
  }
  const absl::Status released = engine->ReleaseFetched(*step, 1);
  REQUIRE(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
  REQUIRE_OK(captured);
  REQUIRE_OK(released);
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE_OK(engine->EndStep(*step));
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  for (const std::vector<int32_t>& wanted :
       {std::vector<int32_t>{0, 1}, {7, -1}, {11, 3}, {kE, 1 << 30}, {5, -9}}) {
    ids.Set(wanted);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the stream does not wait for the copy
    auto again = Begin(engine.get(), 1, stream);
    REQUIRE_OK(again.status());
    REQUIRE(cudaGraphLaunch(executable, stream.get()) == cudaSuccess);
    REQUIRE_OK(engine->EndStep(*again));
    const std::vector<double> got = out.Get();
    for (int j = 0; j < kK; ++j) {
      CHECK(got[j] == expected.At(1, wanted[j] >= kE ? -1 : std::max(wanted[j], -1)));
    }
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_CASE("what cannot be fetched is refused by name, and nothing stays pinned") {
  const OpaqueModel model;
  const Stream stream;
  const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.3);
  auto step = Begin(engine.get(), 1, stream);
  REQUIRE_OK(step.status());
  SlotView view;
  const auto fetch = [&](const FetchInput& input) { return engine->Fetch(*step, 2, input, &view); };
  const auto says = [](const absl::Status& status, absl::StatusCode code, const char* text) {
    CAPTURE(status.ToString());
    CHECK(status.code() == code);
    CHECK(std::string(status.message()).find(text) != std::string::npos);
  };
  FetchInput host;
  const std::vector<int32_t> bad = {3, kE};
  host.ids = bad;
  says(fetch(host), absl::StatusCode::kInvalidArgument, "expert 12 does not exist");
  std::vector<int32_t> every(kE);
  for (int e = 0; e < kE; ++e) every[e] = e;
  host.ids = every;
  says(fetch(host), absl::StatusCode::kResourceExhausted, "ask for at most");
  const DeviceArray<int32_t> ids(every);
  FetchInput there;
  there.place = Place::kDevice;
  there.ids = {ids.get(), kK + 1};
  says(fetch(there), absl::StatusCode::kInvalidArgument, "takes [1, 2]");
  there.ids = {ids.get(), kK};
  const std::vector<float> scores(kE);
  there.scores = scores;
  says(fetch(there), absl::StatusCode::kInvalidArgument, "scores beside ids on the device");
  there.scores = {};
  REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal) == cudaSuccess);
  const absl::Status captured = fetch(there);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
  cudaGraphDestroy(graph);
  says(captured, absl::StatusCode::kFailedPrecondition, "on-demand needs the host");
  CHECK(!engine->graph_needs().capturable);
  std::vector<float> rows(OpaqueModel::kHidden);
  says(engine->Forward(*step, 2, {rows.data(), DType::kF32, 1, 16, 16},
                       {rows.data(), DType::kF32, 1, 16, 16}),
       absl::StatusCode::kFailedPrecondition, "opaque");
  // Nothing is pinned: as many as fit can be had.
  host.ids = absl::MakeConstSpan(every).first(3);
  REQUIRE_OK(fetch(host));
  REQUIRE_OK(engine->ReleaseFetched(*step, 2));
  REQUIRE_OK(engine->EndStep(*step));
  says(fetch(host), absl::StatusCode::kFailedPrecondition, "has ended");
  says(engine->ReleaseFetched(*step, 2), absl::StatusCode::kFailedPrecondition, "has ended");
}

TEST_CASE("our own records have slots in device memory too, beside our own products") {
  SyntheticShape shape;
  const auto source = std::make_shared<SyntheticSource>(shape);
  const auto engine = Open(source, "on-demand", 0.5);
  DeviceRowsBuffer device(static_cast<size_t>(shape.hidden));
  device.Set(std::vector<float>(static_cast<size_t>(shape.hidden), 0.1f));
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = 1;
  info.stream = device.stream();
  auto step = engine->BeginStep(info);
  REQUIRE_OK(step.status());
  const MatrixView x{device.x(), DType::kF32, 1, shape.hidden, shape.hidden};
  for (int round = 0; round < 4; ++round) {
    const std::vector<int32_t> ids = {(5 + round) % shape.experts, 2};
    FetchInput input;
    input.ids = ids;
    input.hidden = x;
    SlotView view;
    REQUIRE_OK(engine->Fetch(*step, 1, input, &view));
    REQUIRE(view.parts.size() == 1);
    for (const int32_t e : ids) {
      const std::vector<std::byte>& record = source->record(1, e, 0);
      std::vector<std::byte> there(record.size());
      REQUIRE(cudaMemcpyAsync(
                  there.data(), view.parts[0].base + view.slot_of_expert[e] * view.parts[0].stride,
                  there.size(), cudaMemcpyDeviceToHost, device.stream()) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(device.stream()) == cudaSuccess);
      CHECK(there == record);
    }
    REQUIRE_OK(engine->ReleaseFetched(*step, 1));
    REQUIRE_OK(
        engine->Forward(*step, 0, x, {device.y(), DType::kF32, 1, shape.hidden, shape.hidden}));
  }
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE(
    "policies that read the next layer's gate have it scored on hidden states on the device") {
  OpaqueModel model;
  for (MoeLayerSpec& layer : model.spec.layers) layer.routing.kind = RoutingKind::kSoftmaxTopK;
  OpaqueWeights weights = model.InMemory();
  weights.gates = [](const WeightRead& read) {
    // Expert e scores what channel e of the input holds.
    auto* gate = static_cast<float*>(read.dst);
    for (int64_t i = 0; i < read.rows * read.cols; ++i) {
      gate[i] = i / read.cols == i % read.cols ? 1.0f : 0.0f;
    }
    return absl::OkStatus();
  };
  const Stream stream;
  const auto engine = Open(Source(model, std::move(weights)), "fate", 0.5);
  DeviceArray<float> x(OpaqueModel::kHidden);
  for (int s = 0; s < 8; ++s) {
    auto step = Begin(engine.get(), 1, stream);
    REQUIRE_OK(step.status());
    for (int l = 0; l < kLayers; ++l) {
      const std::vector<int32_t> ids = {(s + l) % kE, (s + l + 5) % kE};
      std::vector<float> row(OpaqueModel::kHidden);
      row[(s + l + 1) % kE] = row[(s + l + 6) % kE] = 3;  // what the next layer will use
      x.Set(row);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the stream does not wait for the copy
      FetchInput input;
      input.ids = ids;
      input.hidden = {x.get(), DType::kF32, 1, OpaqueModel::kHidden, OpaqueModel::kHidden};
      SlotView view;
      REQUIRE_OK(engine->Fetch(*step, l, input, &view));
      REQUIRE_OK(engine->ReleaseFetched(*step, l));
    }
    REQUIRE_OK(engine->EndStep(*step));
  }
  CHECK(engine->stats().predictions_next_gate > 0);
  CHECK(engine->stats().prefetch_issued > 0);
}

}  // namespace
}  // namespace moert::test
