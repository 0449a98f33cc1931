// Faults below fetches that a host records into a CUDA graph and replays: fault_life.h.
#include <memory>
#include <string>
#include <vector>

#include "fault_life.h"
#include "opaque_shared.h"
#include "recorded_fetches.h"

namespace moert::test {
namespace {

constexpr int kReplays = 3;
constexpr auto kInEngine = [](const auto& call) { return InEngine(call); };

/// One step is computed, then recorded, then replayed. `fill` sets the inputs of a step, `layers`
/// enqueues its layer calls, `take` adds its outputs.
template <typename Fill, typename Layers, typename Take>
Outcome ComputeAndReplay(Engine* engine, int64_t tokens, const Fill& fill, const Layers& layers,
                         const Take& take) {
  const Stream stream;
  Outcome outcome;
  RecordedFetches recorded;
  const auto run = [&](StepId step) { return layers(step, stream); };
  fill();
  const auto step = InEngine([&] { return Begin(engine, tokens, stream); });
  outcome.status = step.status();
  if (step.ok()) {
    outcome.status.Update(run(*step));
    outcome.status.Update(InEngine([&] { return engine->EndStep(*step); }));
  }
  stream.Wait();
  if (outcome.status.ok()) take(&outcome);
  if (outcome.status.ok()) {
    outcome.status = recorded.Record(engine, tokens, stream, run, kInEngine);
  }
  for (int s = 0; s < kReplays && outcome.status.ok(); ++s) {
    fill();
    outcome.status = recorded.Replay(engine, tokens, stream, kInEngine);
    stream.Wait();
    if (outcome.status.ok()) take(&outcome);
  }
  return outcome;
}

Outcome DriveGated(Engine* engine) {
  std::mt19937 random(5);
  GatedToken token;
  return ComputeAndReplay(
      engine, 1, [&] { token.Set(&random); },
      [&](StepId step, const Stream& stream) {
        return token.RunAll(engine, step, stream, kInEngine);
      },
      [&](Outcome* outcome) { outcome->Add(token.out.Get()); });
}

TEST_CASE("faults of captured fetches, with and without prefetches") {
  const OpaqueModel model = Gated();
  for (const char* strategy : {"on-demand", "fate"}) {
    const auto open = [&] {
      return Engine::Create(GatedSource(model), OpaqueOptions(strategy, 0.3, kAllRecords));
    };
    FaultedLife life{std::string("captured fetches, ") + strategy, open, DriveGated, 1};
    // A life that finds too little memory to pin records can fetch, but not within a capture.
    life.open_armed = false;
    life.warm = 4;
    SweepCudaFaults(life);
  }
}

Outcome DriveShared(Engine* engine) {
  std::mt19937 random(6);
  std::vector<std::unique_ptr<Call>> calls;
  for (int l = 0; l < kLayers; ++l) calls.push_back(std::make_unique<Call>(1));
  return ComputeAndReplay(
      engine, 1,
      [&] {
        for (const auto& call : calls) Fill(call.get(), &random);
      },
      [&](StepId step, const Stream& stream) {
        absl::Status status;
        for (int l = 0; l < kLayers && status.ok(); ++l) {
          status = RunLayer(engine, step, l, *calls[static_cast<size_t>(l)], stream, kInEngine);
        }
        return status;
      },
      [&](Outcome* outcome) {
        for (const auto& call : calls) outcome->Add(call->rows.Get());
      });
}

TEST_CASE("faults of captured fetches whose misses device and CPU share") {
  const OpaqueModel model;
  Reference reference(model);
  const auto open = [&] {
    return Engine::Create(
        SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
        SharingOptions("on-demand+importance.placement", 0.3));
  };
  FaultedLife life{"captured fetches, shared with the CPU", open, DriveShared, 1};
  life.open_armed = false;
  life.warm = 4;
  life.tolerance = 1e-8;  // of squares: kRounding, and some
  SweepCudaFaults(life);
  CHECK(reference.experts() > 0);
  CHECK(reference.wrong() == 0);
}

}  // namespace
}  // namespace moert::test
