// Steps of fetches that a host records into CUDA graphs: a replay finds its experts, brings the
// missing ones, prefetches, and shares with the CPU, all without the host.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "moert/expert_store.h"
#include "opaque_shared.h"
#include "recorded_fetches.h"

namespace moert::test {
namespace {

/// A step that is not recorded.
void RunStep(Engine* engine, const GatedToken& token, const Stream& stream) {
  const auto step = Begin(engine, 1, stream);
  REQUIRE_OK(step.status());
  REQUIRE_OK(token.RunAll(engine, *step, stream));
  REQUIRE_OK(engine->EndStep(*step));
  stream.Wait();
}

TEST_CASE("replays bring what they miss and prefetch, and change no bit") {
  const OpaqueModel model = Gated();
  const ExpectedOnDevice expected(model);
  const Stream stream;
  for (const char* strategy : {"on-demand", "on-demand+fate.residency", "fate"}) {
    for (const double fraction : {0.25, 0.5, 0.8}) {
      CAPTURE(strategy, fraction);
      const auto engine = Open(GatedSource(model), strategy, fraction, kAllRecords);
      REQUIRE(engine->graph_needs().capturable);
      std::mt19937 random(9);
      GatedToken token;
      token.Set(&random);
      RunStep(engine.get(), token, stream);
      RecordedFetches recorded;
      REQUIRE_OK(recorded.Record(engine.get(), 1, stream, [&](StepId step) {
        return token.RunAll(engine.get(), step, stream);
      }));
      int wrong = 0;
      const int64_t waits = engine->stats().host_syncs;
      for (int s = 0; s < 80; ++s) {
        token.Set(&random);
        REQUIRE_OK(recorded.Replay(engine.get(), 1, stream));
        stream.Wait();
        wrong += token.Wrong(expected);
      }
      CHECK(engine->stats().host_syncs == waits);
      // Steps that are not recorded, and calls that take the slots back, lie in between.
      for (int s = 0; s < 80; ++s) {
        token.Set(&random);
        if (s % 3 == 0) {
          RunStep(engine.get(), token, stream);
        } else {
          REQUIRE_OK(recorded.Replay(engine.get(), 1, stream));
        }
        if (s % 9 == 5) REQUIRE_OK(engine->ResidencyOf(0).status());
        stream.Wait();
        wrong += token.Wrong(expected);
      }
      CHECK(wrong == 0);
      const auto last = Begin(engine.get(), 1, stream);  // takes the counts of those before
      REQUIRE_OK(last.status());
      REQUIRE_OK(engine->EndStep(*last));
      const EngineStats stats = engine->stats();
      CHECK(stats.lookups >= 2 * kLayers * 160);
      CHECK(stats.loads > 0);
      if (std::string(strategy) == "fate") CHECK(stats.prefetch_useful > 0);
      CHECK(stats.peak_bytes <= stats.budget_bytes);
    }
  }
}

TEST_CASE("replays share misses with the CPU") {
  const OpaqueModel model;
  const Stream stream;
  for (const char* strategy : {"on-demand+importance.placement", "fate+importance.placement"}) {
    for (const int64_t tokens : {1, 3}) {
      CAPTURE(strategy, tokens);
      Reference reference(model);
      const auto engine = OpenShared(
          SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
          strategy, 0.3);
      std::mt19937 random(4);
      std::vector<std::unique_ptr<Call>> calls;
      for (int l = 0; l < kLayers; ++l) calls.push_back(std::make_unique<Call>(tokens));
      const auto run = [&](StepId step) {
        absl::Status status;
        for (int l = 0; l < kLayers && status.ok(); ++l) {
          status = RunLayer(engine.get(), step, l, *calls[static_cast<size_t>(l)], stream);
        }
        return status;
      };
      const auto fill = [&] {
        for (const auto& call : calls) Fill(call.get(), &random);
      };
      fill();
      const auto step = Begin(engine.get(), tokens, stream);
      REQUIRE_OK(step.status());
      REQUIRE_OK(run(*step));
      REQUIRE_OK(engine->EndStep(*step));
      stream.Wait();
      RecordedFetches recorded;
      REQUIRE_OK(recorded.Record(engine.get(), tokens, stream, run));
      const int64_t before = reference.experts();
      double worst = 0;
      for (int s = 0; s < 60; ++s) {
        fill();
        REQUIRE_OK(recorded.Replay(engine.get(), tokens, stream));
        stream.Wait();
        for (int l = 0; l < kLayers; ++l) {
          worst = std::max(worst, Error(*calls[static_cast<size_t>(l)], l, reference));
        }
      }
      CHECK(worst < kRounding);
      CHECK(reference.wrong() == 0);
      CHECK(reference.experts() > before + 50);
    }
  }
}

TEST_CASE("a capture or a replay without the slots that it needs is refused") {
  const OpaqueModel model = Gated();
  const ExpectedOnDevice expected(model);
  const Stream stream;
  const auto engine = Open(GatedSource(model), "on-demand", 0.5, kAllRecords);
  std::mt19937 random(3);
  GatedToken token;
  token.Set(&random);
  const auto run = [&](StepId step) { return token.RunAll(engine.get(), step, stream); };
  const auto refused = [](const absl::Status& status, const char* text) {
    CAPTURE(status.ToString());
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(std::string(status.message()).find(text) != std::string::npos);
  };
  // No step has run: nothing is lent.
  RecordedFetches early;
  refused(early.Record(engine.get(), 1, stream, run), "outside of a capture");
  CHECK(early.ended() == cudaSuccess);  // the capture is the host's
  const auto record = [&] {
    RunStep(engine.get(), token, stream);
    auto recorded = std::make_unique<RecordedFetches>();
    REQUIRE_OK(recorded->Record(engine.get(), 1, stream, run));
    return recorded;
  };
  auto recorded = record();
  {
    const auto step = Begin(engine.get(), 1, stream);
    REQUIRE_OK(step.status());
    std::vector<ExpertView> views;
    const auto lease = engine->AcquireExperts(*step, 0, std::vector<int32_t>{1}, &views);
    REQUIRE_OK(lease.status());
    refused(recorded->Replay(engine.get(), 1, stream), "release what is leased");
    REQUIRE_OK(engine->ReleaseExperts(*lease));
    REQUIRE_OK(engine->EndStep(*step));
  }
  recorded = record();
  for (const double fraction : {0.8, 0.3, 0.5}) {
    REQUIRE_OK(engine->SetBudget(Budget::Fraction(fraction)));
    token.Set(&random);
    const absl::Status replayed = recorded->Replay(engine.get(), 1, stream);
    if (!replayed.ok()) {
      refused(replayed, "capture again");
      recorded = record();
      REQUIRE_OK(recorded->Replay(engine.get(), 1, stream));
    }
    stream.Wait();
    CHECK(token.Wrong(expected) == 0);
  }
}

}  // namespace
}  // namespace moert::test
