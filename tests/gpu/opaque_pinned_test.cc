// Opaque records of which pinned memory holds a part: the device serves fetches, the CPU multiplies
// what the device cannot read, and copies of layers read it.
#include <vector>

#include "exec/backend.h"
#include "opaque_shared.h"

namespace moert::test {
namespace {

/// Records in memory that the CPU may multiply there, or has to copy for their alignment.
std::shared_ptr<const ExpertSource> InMemory(const OpaqueModel& model, bool in_place,
                                             Product product) {
  OpaqueWeights weights = model.InMemory();
  for (std::vector<OpaquePart>& parts : weights.layers) {
    for (OpaquePart& part : parts) part.alignment = in_place ? 1 : kRecordAlignment;
  }
  weights.product = std::move(product);
  return Source(model, std::move(weights));
}

TEST_CASE("records beside pinned memory are the CPU's, and come into it by their use") {
  const bool in_place = GENERATE(false, true);
  const OpaqueModel model;
  const Stream stream;
  const int64_t all = UnpinnedBytes(*InMemory(model, in_place, {}), {0});
  for (const char* strategy : {"on-demand+importance.placement", "fate+importance.placement"}) {
    for (const double pinned : {0.0, 0.3, 0.6}) {
      for (const int64_t tokens : {1, 8}) {
        CAPTURE(strategy, pinned, tokens, in_place);
        Reference reference(model);
        EngineOptions options = SharingOptions(strategy, 0.3);
        options.host_budget = static_cast<int64_t>(pinned * static_cast<double>(all));
        auto opened = Engine::Create(
            InMemory(model, in_place,
                     [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
            options);
        REQUIRE_OK(opened.status());
        Engine* const engine = opened->get();
        std::mt19937 random(4);
        Call call(tokens);
        double worst = 0;
        for (int s = 0; s < 80; ++s) {
          const auto step = Begin(engine, tokens, stream);
          REQUIRE_OK(step.status());
          for (int l = 0; l < kLayers; ++l) {
            Fill(&call, &random);
            REQUIRE_OK(RunLayer(engine, *step, l, call, stream));
            stream.Wait();
            worst = std::max(worst, Error(call, l, reference));
          }
          REQUIRE_OK(engine->EndStep(*step));
        }
        CHECK(worst < kRounding);
        CHECK(reference.wrong() == 0);
        stream.Wait();
        const auto last = Begin(engine, tokens, stream);  // takes the counts of those before
        REQUIRE_OK(last.status());
        REQUIRE_OK(engine->EndStep(*last));
        const EngineStats stats = engine->stats();
        CHECK(stats.host_syncs == 0);
        CHECK(stats.cpu_computed <= reference.experts());  // but for those of jobs that were late
        if (stats.cpu_taken_back == 0) CHECK(stats.cpu_computed == reference.experts());
        CHECK(stats.cpu_below > 0);
        CHECK((stats.cpu_read_bytes > 0) == (!in_place || pinned > 0));
        CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late +
                                   stats.loads + stats.cpu_computed);
        CHECK(stats.pinned_bytes <= options.host_budget);
        if (pinned == 0) CHECK(stats.cpu_below == stats.lookups);
        if (pinned > 0.5) CHECK(stats.hits_resident + stats.loads > 0);
      }
    }
  }
}

TEST_CASE("copies of a layer read what pinned memory does not hold") {
  const OpaqueModel model;
  const ExpectedOnDevice expected(model);
  const Stream stream;
  Reference reference(model);
  std::vector<int32_t> every(kE);
  for (int e = 0; e < kE; ++e) every[e] = e;
  const DeviceArray<int32_t> ids(every);
  EngineOptions options = SharingOptions("fate+importance.placement", 0.3);
  options.host_budget = 1 << 17;  // of some records
  auto engine = Engine::Create(
      SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }), options);
  REQUIRE_OK(engine.status());
  std::mt19937 random(4);
  Call call(1);
  for (int round = 0; round < 4; ++round) {
    const auto step = Begin(engine->get(), 1, stream);
    REQUIRE_OK(step.status());
    for (int l = 0; l < kLayers; ++l) {
      Fill(&call, &random);
      REQUIRE_OK(RunLayer(engine->get(), *step, l, call, stream));
      SlotView view;
      REQUIRE_OK((*engine)->CopyLayer(*step, l, {}, nullptr, &view));
      DeviceArray<std::byte> to(static_cast<size_t>(view.slots * view.parts[0].stride));
      DeviceArray<double> out(kE);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // filled on another stream
      REQUIRE_OK((*engine)->CopyLayer(*step, l, {}, to.get(), &view));
      REQUIRE(LaunchToy(WeightsOf(view), ids.get(), kE, kX, out.get(), stream.get()) ==
              cudaSuccess);
      stream.Wait();
      const std::vector<double> got = out.Get();
      for (int e = 0; e < kE; ++e) CHECK(got[e] == expected.At(l, e));
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
}

}  // namespace
}  // namespace moert::test
