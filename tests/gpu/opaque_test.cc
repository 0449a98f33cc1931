// A host's kernel over slots in device memory computes what it computes over all weights, to the
// bit, at any budget.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "device_array.h"
#include "device_step.h"
#include "moert/engine.h"
#include "tests/support/catch.h"
#include "tests/support/opaque_fixture.h"
#include "tests/support/synthetic_source.h"
#include "tests/support/temp_dir.h"
#include "toy_kernel.h"

namespace moert::test {
namespace {

constexpr int kE = OpaqueModel::kExperts, kK = OpaqueModel::kTopK, kLayers = OpaqueModel::kLayers;
constexpr double kX = 0.5;

class Stream {
 public:
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Wait() const { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The kernel's result for every expert, over all weights in device memory.
class Expected {
 public:
  explicit Expected(const OpaqueModel& model) {
    std::vector<int32_t> every(kE);
    for (int e = 0; e < kE; ++e) every[e] = e;
    const DeviceArray<int32_t> ids(every);
    DeviceArray<double> out(kE);
    for (int l = 0; l < kLayers; ++l) {
      std::vector<std::unique_ptr<DeviceArray<std::byte>>> parts;
      ToyWeights weights{};
      for (int p = 0; p < 3; ++p) {
        parts.push_back(std::make_unique<DeviceArray<std::byte>>(model.data[l][p]));
        weights.base[p] = parts[p]->get();
        weights.stride[p] = weights.bytes[p] = OpaqueModel::PartBytes(l, p);
      }
      REQUIRE(LaunchToy(weights, ids.get(), kE, kX, out.get(), nullptr) == cudaSuccess);
      of_layer_.push_back(out.Get());
      // The kernel is the fixture's product.
      for (int e = 0; e < kE; ++e) {
        CHECK(std::abs(of_layer_[l][e] - test::Expected(model, l, e, kX)) < 1e-9);
      }
    }
  }
  double At(int layer, int32_t id) const { return id < 0 ? -1 : of_layer_[layer][id]; }

 private:
  std::vector<std::vector<double>> of_layer_;
};

std::shared_ptr<const ExpertSource> Source(const OpaqueModel& model, OpaqueWeights weights) {
  auto source = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(source.status());
  return *std::move(source);
}

std::unique_ptr<Engine> Open(std::shared_ptr<const ExpertSource> source, const char* strategy,
                             double fraction) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = 8;
  options.host_budget = 1 << 20;  // some records are kept, others read again
  auto engine = Engine::Create(std::move(source), options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

absl::StatusOr<StepId> Begin(Engine* engine, int64_t tokens, const Stream& stream) {
  StepInfo info;
  info.phase = tokens > 1 ? Phase::kPrefill : Phase::kDecode;
  info.rows = tokens;
  info.stream = stream.get();
  return engine->BeginStep(info);
}

ToyWeights WeightsOf(const SlotView& view) {
  ToyWeights weights{};
  REQUIRE(view.parts.size() == 3);
  for (int p = 0; p < 3; ++p) {
    weights.base[p] = view.parts[p].base;
    weights.stride[p] = view.parts[p].stride;
    weights.bytes[p] = view.parts[p].bytes;
  }
  return weights;
}

/// Some experts are more popular than others, and some tokens want one only.
std::vector<int32_t> RandomIds(std::mt19937* random, int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto a = static_cast<int32_t>((*random)() % kE);
    ids.push_back(a);
    ids.push_back((*random)() % 8 == 0 ? -1 : (a + 1 + static_cast<int32_t>((*random)() % 4)) % kE);
  }
  return ids;
}

/// Layer calls of a host. Nothing is waited for before Agrees: kernels run long after their
/// experts were released. Whatever a call reads on the device it got on the call's stream.
class Host {
 public:
  static constexpr size_t kMostPairs = 512;

  Host(Engine* engine, const Expected* expected, Place place)
      : engine_(engine),
        expected_(expected),
        place_(place),
        device_ids_(kMostPairs),
        slots_(kMostPairs),
        out_(kMostPairs) {
    ids_.reserve(kMostPairs);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the arrays were filled on another stream
  }

  void Step(int64_t tokens, std::mt19937* random, const Stream& stream) {
    auto step = Begin(engine_, tokens, stream);
    REQUIRE_OK(step.status());
    REQUIRE(LaunchDelay(300, stream.get()) == cudaSuccess);
    for (int l = 0; l < kLayers; ++l) Call(*step, l, RandomIds(random, tokens), stream);
    REQUIRE_OK(engine_->EndStep(*step));
  }

  bool Agrees() {
    const std::vector<double> out = out_.Get();
    bool good = !ids_.empty();
    for (size_t i = 0; i < ids_.size(); ++i) {
      good = good && out[i] == expected_->At(layers_[i], ids_[i]);
    }
    return good;
  }

 private:
  void Call(StepId step, int layer, const std::vector<int32_t>& ids, const Stream& stream) {
    const size_t first = ids_.size(), pairs = ids.size();
    REQUIRE(first + pairs <= kMostPairs);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    layers_.resize(ids_.size(), layer);
    int32_t* const slots = slots_.get() + first;
    std::vector<int32_t> host_slots(pairs);
    FetchInput input;
    input.place = place_;
    if (place_ == Place::kHost) {
      input.ids = ids;
      input.slot_ids = absl::MakeSpan(host_slots);
    } else {
      Upload(device_ids_.get() + first, ids, stream);
      input.ids = {device_ids_.get() + first, pairs};
      input.slot_ids = {slots, pairs};
    }
    SlotView view;
    REQUIRE_OK(engine_->Fetch(step, layer, input, &view));
    REQUIRE(view.device_slot_of_expert != nullptr);
    for (const int32_t id : ids) REQUIRE((id < 0 || view.slot_of_expert[id] >= 0));
    if (place_ == Place::kHost) Upload(slots, host_slots, stream);
    REQUIRE(LaunchToy(WeightsOf(view), slots, static_cast<int>(pairs), kX, out_.get() + first,
                      stream.get()) == cudaSuccess);
    REQUIRE_OK(engine_->ReleaseFetched(step, layer));
  }

  static void Upload(int32_t* to, const std::vector<int32_t>& from, const Stream& stream) {
    // Pageable: the copy has left the vector when the call returns.
    REQUIRE(cudaMemcpyAsync(to, from.data(), from.size() * 4, cudaMemcpyHostToDevice,
                            stream.get()) == cudaSuccess);
  }

  Engine* const engine_;
  const Expected* const expected_;
  const Place place_;
  std::vector<int32_t> ids_, layers_;  // of all pairs
  DeviceArray<int32_t> device_ids_, slots_;
  DeviceArray<double> out_;
};

/// All parts in one file, mapped.
class Mapped {
 public:
  explicit Mapped(const OpaqueModel& model) {
    std::string text;
    weights = model.Sizes();
    for (int l = 0; l < kLayers; ++l) {
      for (int p = 0; p < 3; ++p) {
        weights.layers[l][p].offset = static_cast<int64_t>(text.size());
        text.append(reinterpret_cast<const char*>(model.data[l][p].data()),
                    model.data[l][p].size());
      }
    }
    path = dir_ / "experts.bin";
    WriteFile(path, text);
    bytes_ = text.size();
    const int file = open(path.c_str(), O_RDONLY);
    REQUIRE(file >= 0);
    at_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    REQUIRE(at_ != MAP_FAILED);
    for (std::vector<OpaquePart>& parts : weights.layers) {
      for (OpaquePart& part : parts) part.memory = at_;
    }
  }
  ~Mapped() { munmap(at_, bytes_); }
  OpaqueWeights InFile() const {
    OpaqueWeights in_file = weights;
    in_file.files = {path};
    for (std::vector<OpaquePart>& parts : in_file.layers) {
      for (OpaquePart& part : parts) {
        part.memory = nullptr;
        part.file = 0;
      }
    }
    return in_file;
  }

  OpaqueWeights weights;
  std::string path;

 private:
  const TempDir dir_;
  size_t bytes_ = 0;
  void* at_ = nullptr;
};

TEST_CASE("a kernel over slots gives the bits of one over all weights, at any budget") {
  const OpaqueModel model;
  const Expected expected(model);
  const Mapped mapped(model);
  const Stream stream;
  const std::pair<const char*, OpaqueWeights> sources[] = {{"memory", model.InMemory()},
                                                           {"mapped", mapped.weights},
                                                           {"file", mapped.InFile()},
                                                           {"callback", model.ByCallback()}};
  for (const auto& [name, weights] : sources) {
    for (const char* strategy : {"on-demand", "activation-path", "fate", "resident"}) {
      for (const double fraction : {0.1, 0.25, 0.5, 1.0}) {
        const bool resident = std::string(strategy) == "resident";
        if (resident && fraction < 1) continue;
        if (std::string(name) != "memory" && std::string(strategy) != "on-demand") continue;
        for (const Place place : {Place::kHost, Place::kDevice}) {
          CAPTURE(name, strategy, fraction, static_cast<int>(place));
          const auto engine = Open(Source(model, weights), strategy, fraction);
          Host host(engine.get(), &expected, place);
          std::mt19937 random(3);
          for (int step = 0; step < 12; ++step) host.Step(1, &random, stream);
          CHECK(host.Agrees());
          const EngineStats stats = engine->stats();
          CHECK(stats.peak_bytes <= stats.budget_bytes);
          CHECK(stats.lookups > 0);
          if (fraction < 0.5) CHECK(stats.evictions > 0);
          if (resident && place == Place::kDevice) CHECK(stats.host_syncs == 0);
        }
      }
    }
  }
}

TEST_CASE("steps of two streams, and a budget that changes, take no slot from a running kernel") {
  const OpaqueModel model;
  const Expected expected(model);
  const Stream one, two;
  for (const Place place : {Place::kHost, Place::kDevice}) {
    const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.4);
    Host host(engine.get(), &expected, place);
    std::mt19937 random(11);
    for (int round = 0; round < 24; ++round) {
      host.Step(round % 3 == 0 ? 3 : 1, &random, round % 2 == 0 ? one : two);
      if (round == 8) REQUIRE_OK(engine->SetBudget(Budget::Fraction(0.3)));
      if (round == 16) REQUIRE_OK(engine->SetBudget(Budget::Fraction(0.8)));
      const EngineStats stats = engine->stats();
      CHECK(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
    }
    CHECK(host.Agrees());
    CHECK(engine->stats().evictions > 0);
  }
}

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
  const Expected expected(model);
  const Stream stream;
  const auto engine = Open(Source(model, model.InMemory()), "resident", 1);
  REQUIRE(engine->graph_safe());
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
  CHECK(!engine->graph_safe());
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

TEST_CASE("device memory comes back") {
  const OpaqueModel model;
  const Expected expected(model);
  const Stream stream;
  size_t first = 0;
  for (int round = 0; round < 3; ++round) {
    {
      const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.5);
      Host host(engine.get(), &expected, Place::kDevice);
      std::mt19937 random(1);
      for (int s = 0; s < 3; ++s) host.Step(1, &random, stream);
      CHECK(host.Agrees());
    }
    size_t now = 0, total = 0;
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemGetInfo(&now, &total) == cudaSuccess);
    if (round == 0) first = now;
    CHECK(now >= first);  // the driver gives back what it kept, in its own time
  }
}

}  // namespace
}  // namespace moert::test
