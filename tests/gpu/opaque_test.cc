// A host's kernel over slots in device memory computes what it computes over all weights, to the
// bit, at any budget.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "moert/expert_store.h"
#include "opaque_device.h"
#include "tests/support/temp_dir.h"

namespace moert::test {
namespace {

/// Layer calls of a host. Nothing is waited for before Agrees: kernels run long after their
/// experts were released. Everything that a call reads on the device it got on the call's stream.
class Host {
 public:
  static constexpr size_t kMostPairs = 512;

  Host(Engine* engine, const ExpectedOnDevice* expected, Place place)
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

  /// From now on the host does not know who is where.
  void MissesAreServed() { served_ = true; }

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
    const ToyCall at{device_ids_.get() + first, slots_.get() + first, out_.get() + first};
    SlotView view;
    const auto call = [&](const auto& f) {
      for (const int32_t id : ids) {  // fetched, and not released yet
        if (view.slot_of_expert.empty() || served_ || id < 0) continue;
        CHECK(view.slot_of_expert[static_cast<size_t>(id)] >= 0);
      }
      return f();
    };
    REQUIRE_OK(FetchAndMultiply(engine_, step, layer, place_, ids, at, stream.get(), &view, call));
    REQUIRE(view.device_slot_of_expert != nullptr);
    REQUIRE(view.parts.size() == ToyWeights::kParts);
  }

  Engine* const engine_;
  const ExpectedOnDevice* const expected_;
  const Place place_;
  bool served_ = false;
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
  const ExpectedOnDevice expected(model);
  const Mapped mapped(model);
  const Stream stream;
  const std::pair<const char*, OpaqueWeights> sources[] = {{"memory", model.InMemory()},
                                                           {"mapped", mapped.weights},
                                                           {"file", mapped.InFile()},
                                                           {"callback", model.ByCallback()}};
  for (const auto& [name, weights] : sources) {
    for (const char* strategy : {"on-demand", "fate", "resident"}) {
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
          stream.Wait();
          auto last = Begin(engine.get(), 1, stream);  // takes the counts of those before
          REQUIRE_OK(last.status());
          REQUIRE_OK(engine->EndStep(*last));
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
  const ExpectedOnDevice expected(model);
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

TEST_CASE("the device brings what a fetch misses, and nothing waits") {
  const OpaqueModel model;
  const ExpectedOnDevice expected(model);
  const Stream stream;
  for (const double fraction : {0.25, 0.5, 1.0}) {
    CAPTURE(fraction);
    const auto engine = Open(Source(model, model.InMemory()), "on-demand", fraction, kAllRecords);
    Host host(engine.get(), &expected, Place::kDevice);
    host.MissesAreServed();
    std::mt19937 random(5);
    for (int step = 0; step < 12; ++step) host.Step(1, &random, stream);
    CHECK(engine->stats().host_syncs == 0);
    for (int step = 0; step < 2; ++step) {  // the first takes old counts, and asks for new ones
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      host.Step(1, &random, stream);
    }
    const EngineStats stats = engine->stats();
    CHECK(stats.loads > 0);
    CHECK(stats.lookups > stats.loads);
    if (fraction < 0.5) CHECK(stats.evictions > 0);
    // More ids than slots: the host takes over, and gives back.
    host.Step(3, &random, stream);
    host.Step(1, &random, stream);
    CHECK(host.Agrees());
    CHECK(stats.peak_bytes <= stats.budget_bytes);
  }
}

TEST_CASE("slots that were lent for a fetch that does not fit come back as they were lent") {
  const OpaqueModel model;
  const ExpectedOnDevice expected(model);
  const Stream stream;
  const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.25, kAllRecords);
  Host host(engine.get(), &expected, Place::kDevice);
  host.MissesAreServed();
  std::mt19937 random(5);
  // The loan is on its way to the device for so long.
  const auto delay = [&] {
    const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    REQUIRE(cudaLaunchHostFunc(stream.get(), sleep, nullptr) == cudaSuccess);
  };
  for (int round = 0; round < 8; ++round) {
    host.Step(1, &random, stream);
    for (int again = 0; again < 2; ++again) {
      delay();
      host.Step(3, &random, stream);
    }
  }
  CHECK(host.Agrees());
  const EngineStats stats = engine->stats();
  CHECK(stats.peak_bytes <= stats.budget_bytes);
}

TEST_CASE("what the device served has to be released before anything else is asked") {
  const OpaqueModel model;
  const Stream stream;
  const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.5, kAllRecords);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{1, 4});
  auto step = Begin(engine.get(), 1, stream);
  REQUIRE_OK(step.status());
  FetchInput input;
  input.place = Place::kDevice;
  input.ids = {ids.get(), 2};
  SlotView view;
  REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
  CHECK(absl::IsFailedPrecondition(engine->Fetch(*step, 0, input, &view)));
  DeviceArray<std::byte> to(1);
  CHECK(absl::IsFailedPrecondition(engine->CopyLayer(*step, 1, {}, to.get(), &view)));
  CHECK(absl::IsFailedPrecondition(engine->ResidencyOf(1).status()));
  CHECK(absl::IsFailedPrecondition(engine->SetBudget(Budget::Fraction(0.7))));
  std::vector<ExpertView> views;
  CHECK(absl::IsFailedPrecondition(engine->AcquireExperts(*step, 1, {0}, &views).status()));
  REQUIRE_OK(engine->Fetch(*step, 1, input, &view));  // another layer's
  for (int l = 0; l < 2; ++l) REQUIRE_OK(engine->ReleaseFetched(*step, l));
  REQUIRE_OK(engine->ResidencyOf(1).status());
  REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
  REQUIRE_OK(engine->ReleaseFetched(*step, 0));
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("a copy of a layer has all experts, those in slots and those in host memory") {
  const OpaqueModel model;
  const ExpectedOnDevice expected(model);
  const Stream stream;
  std::vector<int32_t> every(kE);
  for (int e = 0; e < kE; ++e) every[e] = e;
  const DeviceArray<int32_t> ids(every);
  const auto engine = Open(Source(model, model.InMemory()), "on-demand", 0.5, kAllRecords);
  Host host(engine.get(), &expected, Place::kDevice);
  host.MissesAreServed();
  std::mt19937 random(5);
  for (int round = 0; round < 3; ++round) {
    host.Step(1, &random, stream);
    auto step = Begin(engine.get(), 1, stream);
    REQUIRE_OK(step.status());
    for (int l = 0; l < kLayers; ++l) {
      SlotView view;
      REQUIRE_OK(engine->CopyLayer(*step, l, {}, nullptr, &view));
      REQUIRE(view.slots == kE);
      DeviceArray<std::byte> to(static_cast<size_t>(view.slots * view.parts[0].stride));
      DeviceArray<double> out(kE);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the arrays were filled on another stream
      REQUIRE_OK(engine->CopyLayer(*step, l, {}, to.get(), &view));
      REQUIRE(LaunchToy(WeightsOf(view), ids.get(), kE, kX, out.get(), stream.get()) ==
              cudaSuccess);
      stream.Wait();
      const std::vector<double> got = out.Get();
      for (int e = 0; e < kE; ++e) CHECK(got[e] == expected.At(l, e));
    }
    REQUIRE_OK(engine->EndStep(*step));
  }
  CHECK(host.Agrees());
}

TEST_CASE("device memory comes back") {
  const OpaqueModel model;
  const ExpectedOnDevice expected(model);
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
