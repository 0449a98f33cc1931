// The importance strategy: its policies from tables, and what the engine does with them.
#include <cstring>

#include "moert/engine.h"
#include "prefetch/prefetch_rule.h"
#include "store/residency/cache_policy.h"
#include "strategies/builtin.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

MoeModelSpec TwoLayers(int experts, int k) {
  MoeModelSpec model;
  for (int l = 0; l < 2; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = experts;
    layer.hidden = 8;
    layer.intermediate = 8;
    layer.routing.top_k = k;
    model.layers.push_back(layer);
  }
  return model;
}

PolicyContext Context(const MoeModelSpec& model, int layer, Phase phase = Phase::kDecode) {
  PolicyContext context;
  context.model = &model;
  context.layer = layer;
  context.phase = phase;
  return context;
}

void Feed(ResidencyPolicy* policy, const PolicyContext& context, std::vector<float> scores,
          int64_t tokens = 1) {
  const std::vector<int32_t> counts(scores.size() / tokens, 0);
  policy->Observe(LayerEvent::Routed(context, {tokens, 1, {}, {}, scores, counts}));
}

/// The expert evicted from those of layer 0.
int Evicted(ResidencyPolicy* policy, const PolicyContext& context,
            const std::vector<VictimCandidate>& candidates, bool prefetch = false) {
  const int i = policy->Victim({context, {0, 99}, prefetch, candidates});
  return i < 0 ? -1 : candidates[i].key.expert;
}

TEST_CASE("average-score evicts the lowest mean over exactly the last n iterations") {
  const MoeModelSpec model = TwoLayers(3, 1);
  const PolicyContext context = Context(model, 0);
  const auto policy = MakeCachePolicy({.kind = ResidencyRuleKind::kAverageScore, .window = 2});
  const std::vector<VictimCandidate> all = {{{0, 0}, 5}, {{0, 1}, 6}, {{0, 2}, 7}};
  // Nothing known: the least recently used.
  CHECK(Evicted(policy.get(), context, all) == 0);
  // Expert 2 is never chosen but scores best but one; 1 is worst.
  Feed(policy.get(), context, {.6f, .1f, .3f});
  CHECK(Evicted(policy.get(), context, all) == 1);
  Feed(policy.get(), context, {.1f, .5f, .4f});  // sums .7 .6 .7
  CHECK(Evicted(policy.get(), context, all) == 1);
  Feed(policy.get(), context, {.2f, .3f, .5f});  // the first is forgotten: .3 .8 .9
  CHECK(Evicted(policy.get(), context, all) == 0);
  // Another layer's scores are its own.
  Feed(policy.get(), Context(model, 1), {.9f, .05f, .05f});
  CHECK(Evicted(policy.get(), context, all) == 0);
  CHECK(Evicted(policy.get(), context, {{{0, 0}, 5}, {{1, 1}, 1}}) == 1);
}

TEST_CASE("an iteration of many tokens weighs as much as one of one token") {
  const MoeModelSpec model = TwoLayers(2, 1);
  const PolicyContext context = Context(model, 0);
  const auto policy = MakeCachePolicy({.kind = ResidencyRuleKind::kAverageScore, .window = 8});
  const std::vector<VictimCandidate> all = {{{0, 0}, 5}, {{0, 1}, 6}};
  Feed(policy.get(), context, {.4f, .6f, .4f, .6f, .4f, .6f}, 3);
  Feed(policy.get(), context, {.7f, .3f});
  CHECK(Evicted(policy.get(), context, all) == 1);  // 1.1 against .9
}

TEST_CASE("a prefetch does not evict an unused prefetch for the same layer") {
  const MoeModelSpec model = TwoLayers(3, 1);
  const PolicyContext context = Context(model, 0);
  const auto policy = MakeCachePolicy({.kind = ResidencyRuleKind::kAverageScore, .window = 4});
  Feed(policy.get(), context, {.1f, .2f, .7f});
  std::vector<VictimCandidate> c = {{{0, 0}, 5}, {{0, 1}, 6}};
  c[0].unused_prefetch = true;
  CHECK(Evicted(policy.get(), context, c, true) == 1);
  CHECK(Evicted(policy.get(), context, c, false) == 0);
  c[1].unused_prefetch = true;
  CHECK(Evicted(policy.get(), context, c, true) == -1);
  CHECK(Evicted(policy.get(), context, c, false) == 0);
}

std::vector<int> Ranked(const Strategy& strategy, const PolicyContext& context, int target,
                        std::vector<float> predicted, int64_t tokens) {
  PrefetchSnapshot snapshot;
  snapshot.context = context;
  snapshot.target_layer = target;
  snapshot.routing.tokens = tokens;
  snapshot.predicted_scores = predicted;
  std::vector<int> experts;
  for (const PrefetchCandidate& c : strategy.prefetch->Rank(snapshot)) {
    CHECK(c.key.layer == target);
    experts.push_back(c.key.expert);
  }
  return experts;
}

TEST_CASE("decode prefetches what is predicted top-score, prefill what is predicted active") {
  const MoeModelSpec model = TwoLayers(5, 2);
  auto strategy = MakeStrategy("importance:alpha=0.3");
  REQUIRE_OK(strategy.status());
  REQUIRE(WantsNextGate(strategy->prefetch.get()));
  const PolicyContext decode = Context(model, 0);
  // beta is .2: .25 is low-score, .4 is top-score.
  CHECK(Ranked(*strategy, decode, 1, {.2f, .25f, .4f, .1f, .05f}, 1) == std::vector<int>{2});
  // Two tokens: the sum over the batch decides the order.
  CHECK(Ranked(*strategy, decode, 1,
               {.2f, .25f, .4f, .1f, .05f,  //
                .5f, .01f, .4f, .05f, .04f},
               2) == std::vector<int>{2, 0});
  const PolicyContext prefill = Context(model, 0, Phase::kPrefill);
  CHECK(Ranked(*strategy, prefill, 1,
               {.2f, .25f, .4f, .1f, .05f,  //
                .5f, .01f, .4f, .05f, .04f},
               2) == std::vector<int>{2, 0, 1});
  // The wrap to the next token has no prediction.
  CHECK(Ranked(*strategy, Context(model, 1), 0, {.2f, .25f, .4f, .1f, .05f}, 1).empty());
  CHECK(Ranked(*strategy, decode, 1, {}, 1).empty());
}

struct Run {
  std::vector<float> out;
  EngineStats stats;
  int64_t now_ns = 0;
};

struct Work {
  Phase phase = Phase::kDecode;
  int64_t rows = 2;
  int steps = 30;
  std::function<absl::Status(Strategy*)> customize;
};

Run Drive(const std::string& strategy, double share, const Work& work = {}, int threads = 1) {
  SyntheticShape shape{3, 16, 4, 64, 48, 32};
  shape.gate_scale = 0.1f;
  const auto source = std::make_shared<SyntheticSource>(shape);
  EngineOptions options;
  options.strategy = strategy;
  options.budget = Budget::Fraction(share);
  options.clock = ClockKind::kVirtual;
  options.link_gbps = 0.1;
  options.threads = threads;
  options.customize_strategy = work.customize;
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 7);
  Run run;
  std::vector<int64_t> requests;
  for (int64_t r = 0; r < work.rows; ++r) requests.push_back(100 + r);
  for (int s = 0; s < work.steps; ++s) {
    REQUIRE_OK(
        RunStep(engine->get(), work.phase, process.Next(work.rows), work.rows, &run.out, requests));
  }
  run.stats = (*engine)->stats();
  run.now_ns = (*engine)->now_ns();
  return run;
}

bool SameBits(const Run& a, const Run& b) {
  return a.out.size() == b.out.size() &&
         std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(float)) == 0;
}

TEST_CASE("where nothing may be substituted, importance is exact to the bit") {
  const Run exact = Drive("resident", 1);
  for (const double share : {1.0, 0.5, 0.25}) {
    for (const char* spec : {"importance:alpha=0", "importance:alpha=0.6,max_slots=0",
                             "importance:alpha=0.6,max_mass=0"}) {
      INFO(spec << " at " << share);
      const Run run = Drive(spec, share);
      CHECK(SameBits(run, exact));
      CHECK(run.stats.slots_substituted == 0);
      CHECK(run.stats.model_hits <= run.stats.hits_resident + run.stats.hits_prefetched);
      CHECK(run.stats.model_lookups == run.stats.lookups);
    }
  }
  // All at hand: the rule runs and finds nothing to replace.
  Work rule_beside_all;
  rule_beside_all.customize = [](Strategy* strategy) {
    auto importance = MakeStrategy("importance:alpha=0.6");
    if (importance.ok()) strategy->routing = std::move(importance->routing);
    return importance.status();
  };
  CHECK(SameBits(Drive("resident", 1, rule_beside_all), exact));
  // Prefill keeps the model's routing unless phase=all.
  const Work prefill{Phase::kPrefill, 20, 4};
  const Run exact_prefill = Drive("resident", 1, prefill);
  CHECK(SameBits(Drive("importance:alpha=0.6", 0.25, prefill), exact_prefill));
  const Run all = Drive("importance:alpha=0.6,phase=all", 0.25, prefill);
  CHECK(!SameBits(all, exact_prefill));
  CHECK(all.stats.slots_substituted > 0);
  CHECK(MakeStrategy("importance:alpha=0,cpu=0")->exact());
  CHECK(!MakeStrategy("importance")->exact());
  CHECK(MakeStrategy("on-demand+importance.residency")->exact());
  CHECK(!MakeStrategy("on-demand+importance.routing")->exact());
}

TEST_CASE("substitution raises the hit ratio, moves fewer bytes and takes less time") {
  const Run exact = Drive("importance:alpha=0", 0.4);
  const Run lossy = Drive("importance:alpha=0.5", 0.4);
  const EngineStats& s = lossy.stats;
  CHECK(s.slots_substituted > 0);
  CHECK(s.slots_substituted < s.slots);
  CHECK(s.mass_substituted > 0);
  CHECK(s.mass_substituted < s.mass);
  CHECK(s.hit_ratio() > exact.stats.hit_ratio());
  CHECK(s.bytes_loaded < exact.stats.bytes_loaded);
  CHECK(lossy.now_ns < exact.now_ns);
  CHECK(s.model_lookups > 0);
  CHECK(s.worst_slot_share > 0);
  const Run grouped = Drive("importance:alpha=0.5,second_pass=1", 0.4);
  CHECK(grouped.stats.slots_substituted > s.slots_substituted);
}

TEST_CASE("caps hold for each request and are audited in the statistics") {
  const Run free = Drive("importance:alpha=0.6", 0.25);
  REQUIRE(free.stats.worst_slot_share > 0.12);
  const Run slots = Drive("importance:alpha=0.6,max_slots=0.1", 0.25);
  CHECK(slots.stats.worst_slot_share <= 0.1 + 1e-6);
  CHECK(slots.stats.slots_substituted <= 0.1 * static_cast<double>(slots.stats.slots) + 1e-6);
  CHECK(slots.stats.slots_substituted > 0);
  const Run mass = Drive("importance:alpha=0.6,max_mass=0.05", 0.25);
  CHECK(mass.stats.worst_mass_share <= 0.05 * (1 + 1e-6));
  CHECK(mass.stats.mass_substituted <= 0.05 * mass.stats.mass * (1 + 1e-6));
  CHECK(mass.stats.slots_substituted > 0);
}

TEST_CASE("a run of importance is reproducible at any thread count") {
  const Run a = Drive("importance:alpha=0.4,second_pass=1", 0.4, {}, 1);
  const Run b = Drive("importance:alpha=0.4,second_pass=1", 0.4, {}, 2);
  CHECK(SameBits(a, b));
  CHECK(a.now_ns == b.now_ns);
  CHECK(a.stats.slots_substituted == b.stats.slots_substituted);
}

TEST_CASE("a model without scores is refused at open, with the legal kinds") {
  SyntheticShape shape;
  shape.kind = RoutingKind::kSparseMixer;
  const auto source = std::make_shared<SyntheticSource>(shape);
  EngineOptions options;
  options.strategy = "importance";
  const absl::Status status = Engine::Create(source, options).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()),
             Catch::Contains("sparsemixer") && Catch::Contains("sigmoid_grouped"));
  options.strategy = "on-demand+importance.residency";
  CHECK(Engine::Create(source, options).ok());
}

TEST_CASE("illegal keys and request ids are named") {
  const auto message = [](const char* spec) {
    return std::string(MakeStrategy(spec).status().message());
  };
  CHECK_THAT(message("importance:alpha=2"),
             Catch::Contains("alpha=2") && Catch::Contains("[0, 1]"));
  CHECK_THAT(message("importance:phase=never"), Catch::Contains("decode, all"));
  CHECK_THAT(message("importance:weights=max"), Catch::Contains("own, displaced"));
  CHECK_THAT(message("importance:second_pass=2"), Catch::Contains("second_pass=2"));
  CHECK_THAT(message("importance:beta=1"), Catch::Contains("max_mass"));
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  auto engine = Engine::Create(source, {});
  REQUIRE_OK(engine.status());
  const std::vector<int64_t> ids = {1, 2};
  CHECK_THAT(std::string((*engine)->BeginStep({Phase::kDecode, 3, ids}).status().message()),
             Catch::Contains("3 rows has 2 request ids"));
}

}  // namespace
}  // namespace moert
