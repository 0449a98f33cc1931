// Which version a transfer brings (Fate Sec. 4.5), and what becomes of low copies, end to end.
#include "strategies/builtin.h"

#include <cstring>

#include "moert/strategy.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;

TEST_CASE("the least popular experts that cover a share of the tokens") {
  const std::vector<int32_t> counts = {40, 0, 5, 30, 5, 10, 10};  // 100 in all
  const auto low = [&](double rho) {
    std::vector<int> experts;
    for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
      if (AmongLeastPopular(counts, e, rho)) experts.push_back(e);
    }
    return experts;
  };
  CHECK(low(0) == std::vector<int>{1});  // serves nobody
  CHECK(low(0.049) == std::vector<int>{1});
  CHECK(low(0.05) == std::vector<int>{1, 4});  // of equals the last
  CHECK(low(0.1) == std::vector<int>{1, 2, 4});
  CHECK(low(0.299) == std::vector<int>{1, 2, 4, 6});
  CHECK(low(0.3) == std::vector<int>{1, 2, 4, 5, 6});
  CHECK(low(0.6) == std::vector<int>{1, 2, 3, 4, 5, 6});
  CHECK(low(1) == std::vector<int>{0, 1, 2, 3, 4, 5, 6});
  CHECK(!AmongLeastPopular(std::vector<int32_t>{0, 0}, 1, 1));  // nothing is known
}

TEST_CASE("prefill, decode and misses") {
  const std::vector<int32_t> counts = {90, 10};
  TransferSnapshot snapshot;
  snapshot.layer_counts = counts;
  snapshot.num_versions = 2;
  const auto version = [&](const HybridBitsOptions& options, Phase phase, bool prefetch, int e) {
    snapshot.context.phase = phase;
    snapshot.prefetch = prefetch;
    snapshot.key = {0, e};
    return MakeHybridBits(options)->TransferVersion(snapshot);
  };
  for (const bool prefetch : {false, true}) {
    CHECK(version({0.1}, Phase::kPrefill, prefetch, 0) == 0);
    CHECK(version({0.1}, Phase::kPrefill, prefetch, 1) == 1);
    CHECK(version({0.09}, Phase::kPrefill, prefetch, 1) == 0);
    CHECK(version({1.0}, Phase::kDecode, prefetch, 1) == 0);
  }
  CHECK(version({0.1, true}, Phase::kDecode, false, 0) == 1);
  CHECK(version({0.1, true}, Phase::kDecode, true, 0) == 0);
  // A low copy that a call has used: decode replaces it.
  snapshot.resident = 1;
  CHECK(version({}, Phase::kDecode, false, 0) == 0);
  CHECK(version({}, Phase::kPrefill, false, 0) == 1);
  CHECK(version({.upgrade = false}, Phase::kDecode, false, 0) == 1);
}

TEST_CASE("hybrid bits need a second scheme and are lossy") {
  const auto refused = [](const char* spec, const char* why) {
    const auto strategy = MakeStrategy(spec);
    REQUIRE(!strategy.ok());
    CHECK_THAT(std::string(strategy.status().message()), Catch::Contains(why));
  };
  refused("fate:rho=0.1", "rho needs a second scheme");
  refused("fate:miss_bits=low", "miss_bits needs a second scheme");
  refused("fate:scheme=bf16,low=bf16", "are both bf16");
  refused("fate:low=w2a16_g64_asym,miss_bits=2", "high");
  refused("fate:low=w2a16_g64_asym,rho=1.5", "rho");
  const auto strategy = MakeStrategy("fate:low=w2a16_g64_asym");
  REQUIRE_OK(strategy.status());
  CHECK(!strategy->exact());
  CHECK(strategy->versions == std::vector<std::string>{"w4a16_g128", "w2a16_g64_asym"});
}

struct Run {
  std::vector<float> prefill, decode;
  EngineStats after_prefill, after;
};

std::shared_ptr<SyntheticSource> Source() {
  return std::make_shared<SyntheticSource>(SyntheticShape{4, 12, 3, 96, 64, 40, true, false, true});
}

/// Four layers of twelve experts, a prefill of 33 tokens, then 24 decode steps.
Run Drive(const std::string& strategy, double share, double link_gbps = 0.05) {
  const auto source = Source();
  EngineOptions options;
  options.strategy = strategy;
  options.threads = 1;
  options.clock = ClockKind::kVirtual;
  options.link_gbps = link_gbps;
  options.budget = Budget::Fraction(share);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(96, 7);
  Run run;
  REQUIRE_OK(RunStep(engine->get(), Phase::kPrefill, process.Next(33), 33, &run.prefill));
  run.after_prefill = (*engine)->stats();
  HiddenProcess tokens(96, 8);
  for (int s = 0; s < 24; ++s) {
    REQUIRE_OK(RunStep(engine->get(), Phase::kDecode, tokens.Next(1), 1, &run.decode));
    const EngineStats stats = (*engine)->stats();
    CHECK(stats.peak_bytes <= stats.budget_bytes);
  }
  run.after = (*engine)->stats();
  return run;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("rho 0 is the high version's own answer, rho 1 the low one's") {
  const double share = GENERATE(1.0, 0.5, 0.2);
  INFO(share);
  const Run high = Drive("resident:scheme=bf16", 1);
  const Run low = Drive("resident:scheme=low", 1);
  const Run none = Drive("fate:scheme=bf16,low=low,rho=0", share);
  CHECK(SameBits(none.prefill, high.prefill));
  CHECK(SameBits(none.decode, high.decode));
  CHECK(none.after.low_answers == 0);
  const Run all = Drive("fate:scheme=bf16,low=low,rho=1", share);
  CHECK(SameBits(all.prefill, low.prefill));
  CHECK(all.after_prefill.low_loads > 0);
  CHECK(all.after_prefill.bytes_loaded ==
        all.after_prefill.low_loads * Source()->layout(0, 0, 1).bytes);
  CHECK(all.after_prefill.bytes_loaded < none.after_prefill.bytes_loaded);
  const Run some = Drive("fate:scheme=bf16,low=low,rho=0.3", share);
  CHECK(some.after_prefill.low_loads > 0);
  CHECK(some.after_prefill.low_loads < all.after_prefill.low_loads);
  CHECK(!SameBits(some.prefill, high.prefill));
  CHECK(!SameBits(some.prefill, low.prefill));
}

TEST_CASE("low copies that decode hits are replaced behind the call, or kept") {
  const Run high = Drive("resident:scheme=bf16", 1);
  const Run kept = Drive("fate:scheme=bf16,low=low,rho=1,low_hits=keep", 1);
  // All fits, all came low, and stays so.
  CHECK(kept.after.low_answers == kept.after.lookups - kept.after_prefill.lookups);
  CHECK(kept.after.bytes_loaded == kept.after_prefill.bytes_loaded);

  const Run upgraded = Drive("fate:scheme=bf16,low=low,rho=1", 1);
  const int64_t low_answers = upgraded.after.low_answers;
  CHECK(low_answers > 0);
  CHECK(low_answers <= 4 * 12);  // once an expert
  CHECK(upgraded.after.evictions == 0);
  CHECK(!SameBits(upgraded.decode, high.decode));
  // An expert that was used once is high from then on: the last step uses no expert for the first
  // time.
  const size_t last = upgraded.decode.size() - 4 * 96;
  CHECK(std::memcmp(&upgraded.decode[last], &high.decode[last], 4 * 96 * sizeof(float)) == 0);
}

TEST_CASE("a decode miss in the low version: less waiting, replaced behind the call") {
  const Run patient = Drive("fate:scheme=bf16,low=low,rho=0", 0.3, 0.01);
  const Run hasty = Drive("fate:scheme=bf16,low=low,rho=0,miss_bits=low,low_hits=keep", 0.3, 0.01);
  const auto stalled = [](const Run& run) {
    return StalledNs(run.after) - StalledNs(run.after_prefill);
  };
  CHECK(hasty.after.low_loads > 0);
  CHECK(stalled(hasty) < 0.8 * static_cast<double>(stalled(patient)));
  const Run upgraded = Drive("fate:scheme=bf16,low=low,rho=0,miss_bits=low", 0.3, 0.01);
  CHECK(upgraded.after.low_answers < hasty.after.low_answers);
}

}  // namespace
}  // namespace moert
