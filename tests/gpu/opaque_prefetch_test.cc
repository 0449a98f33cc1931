// Fetches of single tokens under strategies that know more than who came last: the device evicts by
// worth and prefetches by the next layer's gate, with no host in between, and changes no bit.
#include "opaque_gated.h"

namespace moert::test {
namespace {

constexpr int kSteps = 80;

/// Memory that every call of all steps reads and writes, each of its own: nothing is waited for
/// until the end.
struct Calls {
  std::vector<int32_t> ids;
  std::vector<float> x;
  std::vector<int> layer;

  explicit Calls(std::mt19937* random) {
    std::vector<float> row;
    for (int call = 0; call < kSteps * kLayers; ++call) {
      // Mostly what the gate was asked about a layer before.
      if (call % kLayers == 0 || (*random)() % 4 == 0) row = RandomRow(random);
      const std::vector<int32_t> chosen = Chosen(row);
      ids.insert(ids.end(), chosen.begin(), chosen.end());
      x.insert(x.end(), row.begin(), row.end());
      layer.push_back(call % kLayers);
    }
  }
};

/// The same on the device.
struct DeviceCalls {
  explicit DeviceCalls(const Calls& calls)
      : ids(calls.ids), x(calls.x), slots(calls.ids.size()), out(calls.ids.size()) {
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // filled on another stream
  }
  FetchInput Input(int call) const {
    FetchInput input;
    input.place = Place::kDevice;
    input.ids = {ids.get() + call * kK, kK};
    input.slot_ids = {slots.get() + call * kK, kK};
    input.hidden = {x.get() + call * OpaqueModel::kHidden, DType::kF32, 1, OpaqueModel::kHidden,
                    OpaqueModel::kHidden};
    return input;
  }

  DeviceArray<int32_t> ids;
  DeviceArray<float> x;
  DeviceArray<int32_t> slots;
  DeviceArray<double> out;
};

/// One fetch, with its product.
void Run(Engine* engine, StepId step, const Calls& calls, const DeviceCalls& there, int call,
         const Stream& stream) {
  const int layer = calls.layer[static_cast<size_t>(call)];
  SlotView view;
  REQUIRE_OK(engine->Fetch(step, layer, there.Input(call), &view));
  REQUIRE(LaunchToy(WeightsOf(view), there.slots.get() + call * kK, kK, kX,
                    there.out.get() + call * kK, stream.get()) == cudaSuccess);
  REQUIRE_OK(engine->ReleaseFetched(step, layer));
}

/// All layers of a step, which stays open.
StepId RunLayers(Engine* engine, const Calls& calls, const DeviceCalls& there, int step_number,
                 const Stream& stream) {
  const auto step = Begin(engine, 1, stream);
  REQUIRE_OK(step.status());
  for (int l = 0; l < kLayers; ++l) {
    Run(engine, *step, calls, there, step_number * kLayers + l, stream);
  }
  return *step;
}

TEST_CASE("fetches are served by worth and prefetched for, and change no bit") {
  const OpaqueModel model = Gated();
  const ExpectedOnDevice expected(model);
  const Stream stream;
  for (const char* strategy : {"on-demand+fate.residency", "fate"}) {
    for (const double fraction : {0.25, 0.5, 0.8}) {
      CAPTURE(strategy, fraction);
      const auto engine = Open(GatedSource(model), strategy, fraction, kAllRecords);
      std::mt19937 random(9);
      const Calls calls(&random);
      const DeviceCalls there(calls);
      for (int s = 0; s < kSteps; ++s) {
        const StepId step = RunLayers(engine.get(), calls, there, s, stream);
        // Now and then the host takes the slots back, prefetches under way or not.
        if (s % 9 == 5) REQUIRE_OK(engine->ResidencyOf(0).status());
        REQUIRE_OK(engine->EndStep(step));
      }
      stream.Wait();
      const std::vector<double> got = there.out.Get();
      int64_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        wrong += got[i] != expected.At(calls.layer[i / kK], calls.ids[i]);
      }
      CHECK(wrong == 0);
      auto last = Begin(engine.get(), 1, stream);  // takes the counts of those before
      REQUIRE_OK(last.status());
      REQUIRE_OK(engine->EndStep(*last));
      const EngineStats stats = engine->stats();
      CHECK(stats.loads > 0);
      CHECK(stats.lookups >=
            stats.hits_resident + stats.hits_prefetched + stats.late + stats.loads);
      if (std::string(strategy) == "fate") CHECK(stats.prefetch_useful > 0);
      CHECK(stats.peak_bytes <= stats.budget_bytes);
    }
  }
}

/// How often all steps wait for the device.
int64_t Waits(const char* strategy, double fraction) {
  const OpaqueModel model = Gated();
  const Stream stream;
  const auto engine = Open(GatedSource(model), strategy, fraction, kAllRecords);
  std::mt19937 random(2);
  const Calls calls(&random);
  const DeviceCalls there(calls);
  for (int s = 0; s < kSteps; ++s) {
    REQUIRE_OK(engine->EndStep(RunLayers(engine.get(), calls, there, s, stream)));
  }
  return engine->stats().host_syncs;
}

TEST_CASE("no fetch of a token waits where slots hold one of every layer, with prefetches") {
  for (const char* strategy : {"on-demand", "fate"}) {
    for (const double fraction : {0.17, 0.25, 0.5, 0.8}) {  // 0.17: a token's and none to spare
      CAPTURE(strategy, fraction);
      CHECK(Waits(strategy, fraction) == 0);
    }
  }
}

TEST_CASE("a layer with fewer slots than a token needs is the host's, which waits") {
  // 5 slots: 2, 2 and 1. Blocks are taken back, and ids brought, once a step.
  CHECK(Waits("on-demand", 0.14) == 2 * kSteps);
}

}  // namespace
}  // namespace moert::test
