// Misses of opaque records that device and CPU share: the host's kernel multiplies what is in
// slots, its product on the CPU the rest, and rows come together.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "opaque_shared.h"

namespace moert::test {
namespace {

TEST_CASE("rows of device and CPU are those of all experts") {
  const OpaqueModel model;
  const Stream stream;
  for (const char* strategy : {"on-demand+importance.placement", "fate+importance.placement"}) {
    for (const int64_t tokens : {1, 3, 8}) {
      // A layer has up to 12 slots, or fewer than a call has ids.
      for (const double fraction : {0.3, 0.85}) {
        CAPTURE(strategy, tokens, fraction);
        Reference reference(model);
        const auto engine = OpenShared(
            SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
            strategy, fraction);
        CHECK_FALSE(engine->exact());
        std::mt19937 random(4);
        Call call(tokens);
        double worst = 0;
        bool differ = true;
        for (int s = 0; s < 60; ++s) {
          const auto step = Begin(engine.get(), tokens, stream);
          REQUIRE_OK(step.status());
          for (int l = 0; l < kLayers; ++l) {
            Fill(&call, &random);
            REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
            stream.Wait();
            worst = std::max(worst, Error(call, l, reference));
            differ = differ && SlotsDiffer(call);
          }
          REQUIRE_OK(engine->EndStep(*step));
        }
        CHECK(worst < kRounding);
        CHECK(differ);
        CHECK(reference.wrong() == 0);
        stream.Wait();
        const auto last = Begin(engine.get(), tokens, stream);  // takes the counts of those before
        REQUIRE_OK(last.status());
        REQUIRE_OK(engine->EndStep(*last));
        const EngineStats stats = engine->stats();
        CHECK(stats.cpu_computed == reference.experts());
        CHECK(stats.cpu_taken_back == 0);
        CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late +
                                   stats.loads + stats.cpu_computed);
        CHECK(stats.cpu_computed > (fraction < 0.5 ? 50 : 5));
        CHECK(stats.peak_bytes <= stats.budget_bytes);
      }
    }
  }
}

TEST_CASE("the CPU multiplies what the host chooses, between calls that the device serves") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  const auto engine =
      OpenShared(SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
                 "fate+importance.placement", 0.3);
  std::mt19937 random(6);
  Call call(3);
  std::vector<float> x(2 * kHidden), out(3 * kHidden);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const std::vector<OpaqueProduct::Expert> experts = {{kE - 1, 1}, {0, 2}};
  const std::vector<int32_t> row_of = {1, 0, 1};
  OpaqueProduct product;
  product.hidden = kHidden;
  product.rows = 2;
  product.x = x.data();
  product.experts = experts;
  product.row_of = row_of;
  product.out = out.data();
  for (int s = 0; s < 10; ++s) {
    const auto step = Begin(engine.get(), 3, stream);
    REQUIRE_OK(step.status());
    for (int l = 0; l < kLayers; ++l) {
      Fill(&call, &random);
      REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
      REQUIRE_OK(engine->MultiplyOnCpu(*step, l, product));
      bool same = true;
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = static_cast<size_t>(row_of[i / kHidden]);
        const float of = reference.Of(l, i / kHidden == 0 ? kE - 1 : 0);
        same = same && out[i] == of * x[row * kHidden + i % kHidden];
      }
      CHECK(same);
      stream.Wait();
      CHECK(Error(call, l, reference) < kRounding);
    }
    REQUIRE_OK(engine->EndStep(*step));
  }
  CHECK(reference.wrong() == 0);
}

TEST_CASE("no layer call waits on the host, whatever it names") {
  const OpaqueModel model;
  const Stream stream;
  for (const int64_t tokens : {1, 8}) {
    Reference reference(model);
    const auto engine = OpenShared(
        SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
        "fate+importance.placement", 0.3);
    std::mt19937 random(9);
    Call call(tokens);
    Fill(&call, &random);
    for (int s = 0; s < 40; ++s) {
      const auto step = Begin(engine.get(), tokens, stream);
      REQUIRE_OK(step.status());
      for (int l = 0; l < kLayers; ++l) REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
      REQUIRE_OK(engine->EndStep(*step));
    }
    stream.Wait();
    CHECK(engine->stats().host_syncs == 0);
  }
}

TEST_CASE("calls without an input for the CPU bring every miss") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  const auto engine =
      OpenShared(SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
                 "on-demand+importance.placement", 0.5);
  std::mt19937 random(9);
  Call call(1);
  for (int s = 0; s < 20; ++s) {
    const auto step = Begin(engine.get(), 1, stream);
    REQUIRE_OK(step.status());
    Fill(&call, &random);
    FetchInput input;
    input.place = Place::kDevice;
    input.ids = {call.ids.get(), static_cast<size_t>(call.tokens * kK)};
    input.slot_ids = {call.slots.get(), static_cast<size_t>(call.tokens * kK)};
    SlotView view;
    REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
    REQUIRE_OK(engine->TakeCpuRows(*step, 0, call.Rows()));  // nothing is owed
    REQUIRE_OK(engine->ReleaseFetched(*step, 0));
    REQUIRE_OK(engine->EndStep(*step));
    stream.Wait();
    const std::vector<int32_t> ids = call.ids.Get(), slots = call.slots.Get();
    for (size_t i = 0; i < ids.size(); ++i) CHECK((ids[i] < 0) == (slots[i] < 0));
  }
  CHECK(reference.experts() == 0);
}

TEST_CASE("a strategy that asks the CPU for opaque records without a product is refused") {
  const OpaqueModel model;
  const auto engine = Engine::Create(Source(model, model.InMemory()),
                                     SharingOptions("fate+importance.placement", 0.5));
  REQUIRE(absl::IsFailedPrecondition(engine.status()));
  CHECK(std::string(engine.status().message()).find("OpaqueWeights::product") != std::string::npos);
}

TEST_CASE("rows that are owed have to be taken before the release, in their own shape") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  const auto engine =
      OpenShared(SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
                 "on-demand+importance.placement", 0.5);
  std::mt19937 random(3);
  Call call(1);
  Fill(&call, &random);
  const auto step = Begin(engine.get(), 1, stream);
  REQUIRE_OK(step.status());
  FetchInput input;
  input.place = Place::kDevice;
  input.ids = {call.ids.get(), static_cast<size_t>(call.tokens * kK)};
  input.slot_ids = {call.slots.get(), static_cast<size_t>(call.tokens * kK)};
  input.cpu_rows = call.Input();
  SlotView view;
  input.cpu_rows.cols = kHidden - 1;
  CHECK(absl::IsInvalidArgument(engine->Fetch(*step, 0, input, &view)));
  input.cpu_rows.cols = kHidden;
  REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
  CHECK(absl::IsFailedPrecondition(engine->ReleaseFetched(*step, 0)));
  MutableMatrixView rows = call.Rows();
  rows.rows = 1;
  CHECK(absl::IsInvalidArgument(engine->TakeCpuRows(*step, 0, rows)));
  rows = call.Rows();
  rows.dtype = DType::kBF16;
  CHECK(absl::IsInvalidArgument(engine->TakeCpuRows(*step, 0, rows)));
  REQUIRE_OK(engine->TakeCpuRows(*step, 0, call.Rows()));
  REQUIRE_OK(engine->TakeCpuRows(*step, 0, call.Rows()));  // nothing is owed any more
  REQUIRE_OK(engine->ReleaseFetched(*step, 0));
  REQUIRE_OK(engine->EndStep(*step));
}

/// Steps until one fails; what it says.
absl::Status UntilFailure(Engine* engine, const Stream& stream, Call* call, int* lost) {
  std::mt19937 random(6);
  for (int s = 0; s < 60; ++s) {
    const auto step = Begin(engine, call->tokens, stream);
    REQUIRE_OK(step.status());
    absl::Status status;
    for (int l = 0; l < kLayers && status.ok(); ++l) {
      Fill(call, &random);
      status = RunLayer(engine, *step, l, *call, stream);
      stream.Wait();
      const std::vector<float> rows = call->rows.Get();
      *lost += static_cast<int>(
          std::count_if(rows.begin(), rows.end(), [](float value) { return std::isnan(value); }));
    }
    const absl::Status ended = engine->EndStep(*step);
    if (!ended.ok()) return ended;
  }
  return absl::OkStatus();
}

TEST_CASE("a product that fails fails its step, and the engine goes on") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  std::atomic<int> fails{2};  // by a status and by an exception
  const auto engine = OpenShared(SourceOf(model,
                                          [&](const OpaqueProduct& job) -> absl::Status {
                                            const int left = fails.load();
                                            if (left > 0) --fails;
                                            if (left == 2) return absl::DataLossError("bad bytes");
                                            if (left == 1) throw std::bad_alloc();
                                            return reference.Multiply(job);
                                          }),
                                 "on-demand+importance.placement", 0.5);
  Call call(1);
  int lost = 0;
  const absl::Status by_status = UntilFailure(engine.get(), stream, &call, &lost);
  CHECK(absl::IsDataLoss(by_status));
  CHECK(std::string(by_status.message()).find("bad bytes") != std::string::npos);
  CHECK(std::string(by_status.message()).find("toy layer") != std::string::npos);
  CHECK(lost > 0);
  CHECK(absl::IsResourceExhausted(UntilFailure(engine.get(), stream, &call, &lost)));
  lost = 0;
  REQUIRE_OK(UntilFailure(engine.get(), stream, &call, &lost));
  CHECK(lost == 0);
  CHECK(reference.experts() > 0);
}

TEST_CASE("a product that does not end in time is an error, not a hang") {
  // 8 tokens name more than the layer has slots: what nobody can compute meanwhile is lost, too.
  const int64_t tokens = GENERATE(1, 8);
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  std::atomic<bool> slow{true};
  const auto engine = OpenShared(SourceOf(model,
                                          [&](const OpaqueProduct& job) {
                                            if (slow.exchange(false)) {
                                              std::this_thread::sleep_for(std::chrono::seconds(3));
                                            }
                                            return reference.Multiply(job);
                                          }),
                                 "on-demand+importance.placement", 0.3);
  Call call(tokens);
  int lost = 0;
  const absl::Status late = UntilFailure(engine.get(), stream, &call, &lost);
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(lost > 0);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // the late answer
  // Rows of later calls that were lost meanwhile are told by the next step.
  UntilFailure(engine.get(), stream, &call, &lost).IgnoreError();
  lost = 0;
  REQUIRE_OK(UntilFailure(engine.get(), stream, &call, &lost));
  CHECK(lost == 0);
}

TEST_CASE("engines come and go with jobs under way, and leave nothing") {
  const OpaqueModel model;
  const Stream stream;
  size_t first = 0;
  for (int life = 0; life < 4; ++life) {
    {
      Reference reference(model);
      const auto engine = OpenShared(
          SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
          "fate+importance.placement", 0.5);
      std::mt19937 random(2);
      Call call(1);
      for (int s = 0; s < 10; ++s) {
        Fill(&call, &random);
        const auto step = Begin(engine.get(), 1, stream);
        REQUIRE_OK(step.status());
        for (int l = 0; l < kLayers; ++l) {
          REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
        }
        REQUIRE_OK(engine->EndStep(*step));
      }
    }
    size_t now = 0, total = 0;
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemGetInfo(&now, &total) == cudaSuccess);
    if (life == 0) first = now;
    CHECK(now >= first);
  }
}

}  // namespace
}  // namespace moert::test
