// A host's kernel over slots computes what it computes over all weights, to the bit, at any budget.
#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "moert/engine.h"
#include "moert/source/expert_source.h"
#include "moert/strategy.h"
#include "support/catch.h"
#include "support/opaque_fixture.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::Expected;
using test::OpaqueModel;
using test::OverSlots;

constexpr int kE = OpaqueModel::kExperts;

std::shared_ptr<const ExpertSource> Source(const OpaqueModel& model, OpaqueWeights weights) {
  auto source = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(source.status());
  return *std::move(source);
}

std::unique_ptr<Engine> Open(std::shared_ptr<const ExpertSource> source, EngineOptions options) {
  options.threads = 1;
  options.max_tokens_per_forward = 8;
  auto engine = Engine::Create(std::move(source), options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

std::vector<int32_t> RandomIds(std::mt19937* random, int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t a = static_cast<int32_t>((*random)() % kE);
    // Some experts are more popular than others, and some tokens want one only.
    const int32_t b = (a + 1 + static_cast<int32_t>((*random)() % 4)) % kE;
    ids.push_back(a);
    ids.push_back((*random)() % 8 == 0 ? -1 : b);
  }
  return ids;
}

/// Whether what lies in the slots of a fetch gives what all weights do.
bool SlotsAgree(const OpaqueModel& model, int layer, const SlotView& view,
                absl::Span<const int32_t> ids, absl::Span<const int32_t> slots) {
  bool good = view.parts.size() == 3;
  for (size_t i = 0; good && i < ids.size(); ++i) {
    if (ids[i] < 0) {
      good = slots[i] == -1;
      continue;
    }
    good = slots[i] >= 0 && slots[i] < view.slots && slots[i] == view.slot_of_expert[ids[i]] &&
           OverSlots(view, slots[i], 0.5) == Expected(model, layer, ids[i], 0.5);
    for (int p = 0; p < 3; ++p) {
      good = good && reinterpret_cast<uintptr_t>(view.parts[p].base) % (32 << p) == 0;
    }
  }
  return good;
}

/// One step over all layers; false where something differs or fails.
bool StepAgrees(Engine* engine, const OpaqueModel& model, int64_t tokens, std::mt19937* random) {
  auto step = engine->BeginStep({tokens > 1 ? Phase::kPrefill : Phase::kDecode, tokens});
  bool good = step.ok();
  for (int layer = 0; good && layer < OpaqueModel::kLayers; ++layer) {
    const std::vector<int32_t> ids = RandomIds(random, tokens);
    std::vector<int32_t> slots(ids.size());
    FetchInput input;
    input.ids = ids;
    input.slot_ids = absl::MakeSpan(slots);
    SlotView view;
    good = engine->Fetch(*step, layer, input, &view).ok() &&
           SlotsAgree(model, layer, view, ids, slots) && engine->ReleaseFetched(*step, layer).ok();
  }
  return good && engine->EndStep(*step).ok();
}

TEST_CASE("slots hold what the host's memory, callback and file have, at any budget") {
  const OpaqueModel model;
  const test::TempDir dir;
  OpaqueWeights in_file = model.Sizes();
  std::string text;
  for (int l = 0; l < OpaqueModel::kLayers; ++l) {
    for (int p = 0; p < 3; ++p) {
      in_file.layers[l][p].file = 0;
      in_file.layers[l][p].offset = static_cast<int64_t>(text.size());
      text.append(reinterpret_cast<const char*>(model.data[l][p].data()), model.data[l][p].size());
    }
  }
  in_file.files = {dir / "experts.bin"};
  test::WriteFile(in_file.files[0], text);
  const std::pair<const char*, OpaqueWeights> sources[] = {
      {"memory", model.InMemory()}, {"callback", model.ByCallback()}, {"file", in_file}};
  for (const auto& [name, weights] : sources) {
    for (const char* strategy : {"on-demand", "fate", "resident"}) {
      for (const double fraction : {0.1, 0.25, 0.5, 1.0}) {
        if (std::string(strategy) == "resident" && fraction < 1) continue;
        CAPTURE(name, strategy, fraction);
        EngineOptions options;
        options.strategy = strategy;
        options.budget = Budget::Fraction(fraction);
        const auto engine = Open(Source(model, weights), options);
        std::mt19937 random(3);
        bool good = true;
        for (int step = 0; step < 12; ++step)
          good = StepAgrees(engine.get(), model, 1, &random) && good;
        CHECK(good);
        const EngineStats stats = engine->stats();
        CHECK(stats.peak_bytes <= stats.budget_bytes);
        CHECK(stats.lookups > 0);
        CHECK((fraction < 0.5 ? stats.evictions > 0 : true));
      }
    }
  }
}

TEST_CASE("blocks are as large as the records of their layer: no budget is lost to the largest") {
  const OpaqueModel model;
  const auto source = Source(model, model.InMemory());
  EngineOptions options;
  options.budget = Budget::Fraction(1.0);
  const auto engine = Open(source, options);
  const MemoryPlan plan = engine->memory();
  int64_t all = 0;
  for (int l = 0; l < OpaqueModel::kLayers; ++l) {
    all += kE * ((source->layout(l, 0, 0).bytes + 4095) / 4096 * 4096);
  }
  CHECK(plan.all_bytes == all);
  CHECK(plan.all_bytes < plan.total_experts * plan.block_bytes * 3 / 4);
  CHECK(plan.pool_bytes() == all);
  // All of them fit.
  auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  std::vector<int32_t> every(kE);
  for (int e = 0; e < kE; ++e) every[e] = e;
  FetchInput input;
  input.ids = every;  // any number a token
  SlotView view;
  for (int l = 0; l < OpaqueModel::kLayers; ++l) {
    REQUIRE_OK(engine->Fetch(*step, l, input, &view));
    CHECK(view.slots == kE);
    CHECK(view.parts[0].stride == (source->layout(l, 0, 0).bytes + 4095) / 4096 * 4096);
  }
  CHECK(engine->stats().evictions == 0);
  CHECK(engine->stats().pool_bytes == all);
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("memory moves between layers of different sizes as they need it") {
  const OpaqueModel model;
  EngineOptions options;
  options.budget = Budget::Fraction(0.4);
  const auto engine = Open(Source(model, model.InMemory()), options);
  std::mt19937 random(11);
  bool good = true;
  for (int round = 0; round < 20; ++round) {
    // Wide steps want more of a layer than its share.
    good = StepAgrees(engine.get(), model, round % 3 == 0 ? 3 : 1, &random) && good;
    if (round == 8) REQUIRE_OK(engine->SetBudget(Budget::Fraction(0.3)));
    if (round == 14) REQUIRE_OK(engine->SetBudget(Budget::Fraction(0.8)));
    const EngineStats stats = engine->stats();
    CHECK(stats.fixed_bytes + stats.pool_bytes <= stats.budget_bytes);
  }
  CHECK(good);
}

TEST_CASE("experts that do not fit at once are refused, with how many would") {
  const OpaqueModel model;
  EngineOptions options;
  options.budget = Budget::Fraction(0.25);
  const auto engine = Open(Source(model, model.InMemory()), options);
  auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  std::vector<int32_t> every(kE);
  for (int e = 0; e < kE; ++e) every[e] = e;
  FetchInput input;
  input.ids = every;
  SlotView view;
  const absl::Status refused = engine->Fetch(*step, 2, input, &view);
  CHECK(refused.code() == absl::StatusCode::kResourceExhausted);
  const std::string text(refused.message());
  const size_t at = text.find("ask for at most ");
  REQUIRE(at != std::string::npos);
  const int most = std::stoi(text.substr(at + 16));
  CHECK(most > 0);
  CHECK(most < kE);
  // So many at a time do, and nothing is left pinned.
  int served = 0;
  for (int first = 0; first < kE; first += most) {
    input.ids = absl::MakeConstSpan(every).subspan(first, std::min(most, kE - first));
    REQUIRE_OK(engine->Fetch(*step, 2, input, &view));
    for (const int32_t e : input.ids) {
      served += OverSlots(view, view.slot_of_expert[e], 1.5) == Expected(model, 2, e, 1.5);
    }
    REQUIRE_OK(engine->ReleaseFetched(*step, 2));
  }
  CHECK(served == kE);
  // Pinned by one step, they are missing to another.
  input.ids = absl::MakeConstSpan(every).first(most);
  REQUIRE_OK(engine->Fetch(*step, 2, input, &view));
  auto other = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(other.status());
  SlotView second;
  input.ids = absl::MakeConstSpan(every).subspan(most, most);
  CHECK(engine->Fetch(*other, 2, input, &second).code() == absl::StatusCode::kResourceExhausted);
  REQUIRE_OK(engine->EndStep(*step));  // releases
  CHECK(engine->Fetch(*other, 2, input, &second).ok());
  REQUIRE_OK(engine->EndStep(*other));
}

TEST_CASE("several threads fetch from one engine") {
  const OpaqueModel model;
  EngineOptions options;
  options.budget = Budget::Fraction(0.6);
  options.strategy = "fate";
  const auto engine = Open(Source(model, model.ByCallback()), options);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(100 + i);
      for (int step = 0; step < 20; ++step) {
        good += StepAgrees(engine.get(), model, 1, &random);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 60);
}

TEST_CASE("policies that read the next layer's gate take the host's scores") {
  const OpaqueModel model;
  EngineOptions options;
  options.strategy = "fate";
  options.clock = ClockKind::kVirtual;
  options.budget = Budget::Fraction(0.5);
  const auto engine = Open(Source(model, model.InMemory()), options);
  for (int s = 0; s < 6; ++s) {
    auto step = engine->BeginStep({Phase::kDecode, 1});
    REQUIRE_OK(step.status());
    for (int l = 0; l < OpaqueModel::kLayers; ++l) {
      const std::vector<int32_t> ids = {(s + l) % kE, (s + l + 5) % kE};
      std::vector<float> next(kE, 0.01f);
      next[(s + l + 1) % kE] = next[(s + l + 6) % kE] = 0.4f;
      FetchInput input;
      input.ids = ids;
      input.next_scores = next;
      SlotView view;
      REQUIRE_OK(engine->Fetch(*step, l, input, &view));
      REQUIRE_OK(engine->ReleaseFetched(*step, l));
    }
    REQUIRE_OK(engine->EndStep(*step));
  }
  CHECK(engine->stats().prefetch_issued > 0);
  CHECK(engine->stats().prefetch_useful > 0);
  CHECK(engine->stats().predictions_next_gate > 0);
}

TEST_CASE("with gates and hidden states the library scores the next layer itself") {
  OpaqueModel model;
  OpaqueWeights weights = model.InMemory();
  for (const bool gates : {true, false}) {
    for (MoeLayerSpec& layer : model.spec.layers) {
      layer.routing.kind = gates ? RoutingKind::kSoftmaxTopK : RoutingKind::kExternal;
    }
    if (gates) {
      weights.gates = [](const WeightRead& read) {
        // Expert e scores what channel e of the input holds.
        auto* gate = static_cast<float*>(read.dst);
        for (int64_t i = 0; i < read.rows * read.cols; ++i) {
          gate[i] = i / read.cols == i % read.cols ? 1.0f : 0.0f;
        }
        return absl::OkStatus();
      };
    }
    EngineOptions options;
    options.strategy = "fate";
    options.clock = ClockKind::kVirtual;
    options.budget = Budget::Fraction(0.5);
    const auto engine = Open(Source(model, weights), options);
    for (int s = 0; s < 6; ++s) {
      auto step = engine->BeginStep({Phase::kDecode, 1});
      REQUIRE_OK(step.status());
      for (int l = 0; l < OpaqueModel::kLayers; ++l) {
        const std::vector<int32_t> ids = {(s + l) % kE, (s + l + 5) % kE};
        std::vector<float> x(OpaqueModel::kHidden);
        x[(s + l + 1) % kE] = x[(s + l + 6) % kE] = 3;  // what the next layer will use
        FetchInput input;
        input.ids = ids;
        input.hidden = {x.data(), DType::kF32, 1, OpaqueModel::kHidden, OpaqueModel::kHidden};
        SlotView view;
        REQUIRE_OK(engine->Fetch(*step, l, input, &view));
        input.hidden.cols = 3;
        CHECK(std::string(engine->Fetch(*step, l, input, &view).message()).find("hidden: [1, 3]") !=
              std::string::npos);
        REQUIRE_OK(engine->ReleaseFetched(*step, l));
      }
      REQUIRE_OK(engine->EndStep(*step));
    }
    CHECK((engine->stats().predictions_next_gate > 0) == gates);
    CHECK((engine->stats().prefetch_useful > 0) == gates);
  }
}

TEST_CASE("our own records have slots too: one part, the record") {
  const auto source = std::make_shared<test::SyntheticSource>(test::SyntheticShape{});
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);
  const auto engine = Open(source, options);
  auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  const std::vector<int32_t> ids = {5, 2};
  FetchInput input;
  input.ids = ids;
  SlotView view;
  REQUIRE_OK(engine->Fetch(*step, 1, input, &view));
  REQUIRE(view.parts.size() == 1);
  for (const int32_t e : ids) {
    const std::byte* at = view.parts[0].base + view.slot_of_expert[e] * view.parts[0].stride;
    const std::vector<std::byte>& record = source->record(1, e, 0);
    CHECK(std::equal(record.begin(), record.end(), at));
  }
  CHECK(view.parts[0].bytes == source->layout(1, 0, 0).bytes);
  REQUIRE_OK(engine->EndStep(*step));
  options.strategy = "graded:wait=0";
  options.budget = Budget::Fraction(1);
  test::SyntheticShape two;
  two.low_version = true;
  options.customize_strategy = [](Strategy* strategy) {
    strategy->versions = {"bf16", "low"};
    return absl::OkStatus();
  };
  const auto versions = Open(std::make_shared<test::SyntheticSource>(two), options);
  step = versions->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  CHECK(versions->Fetch(*step, 1, input, &view).code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE_OK(versions->EndStep(*step));
}

TEST_CASE("the library does not multiply opaque records, and says so") {
  const OpaqueModel model;
  const auto engine = Open(Source(model, model.InMemory()), {});
  auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  std::vector<float> x(OpaqueModel::kHidden);
  const absl::Status status = engine->Forward(
      *step, 0, {x.data(), DType::kF32, 1, OpaqueModel::kHidden, OpaqueModel::kHidden},
      {x.data(), DType::kF32, 1, OpaqueModel::kHidden, OpaqueModel::kHidden});
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(status.message()).find("use Fetch") != std::string::npos);
  REQUIRE_OK(engine->EndStep(*step));
}

TEST_CASE("bad fetches are refused by name") {
  const OpaqueModel model;
  const auto engine = Open(Source(model, model.InMemory()), {});
  auto step = engine->BeginStep({Phase::kDecode, 2});
  REQUIRE_OK(step.status());
  SlotView view;
  const auto message = [&](const FetchInput& input) {
    const absl::Status status = engine->Fetch(*step, 1, input, &view);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::vector<int32_t> odd = {1, 2, 3}, unknown = {1, kE, 0, 2}, good = {0, 1, 2, 3};
  const std::vector<float> scores(5);
  FetchInput input;
  CHECK(message(input).find("ids of layer 1: 0 values") != std::string::npos);
  input.ids = odd;
  CHECK(message(input).find("3 values") != std::string::npos);
  input.ids = unknown;
  CHECK(message(input).find("token 0: expert 12 does not exist") != std::string::npos);
  input.ids = good;
  input.next_scores = scores;
  CHECK(message(input).find("next_scores of layer 1: 5 values; takes 24") != std::string::npos);
  CHECK_FALSE(engine->Fetch(*step, 7, {}, &view).ok());
  CHECK_FALSE(engine->Fetch(*step, 0, {}, nullptr).ok());
  CHECK(engine->EndStep(*step).ok());  // none of this is a failure of the step
}

}  // namespace
}  // namespace moert
