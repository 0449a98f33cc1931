// ARC's lists where a device goes on with them (lib/rules/arc_lists.h): the decisions of
// ArcLists, call by call, over drawn and recorded routing.
#include <algorithm>
#include <random>

#include "moert/strategy.h"
#include "moert/trace.h"
#include "strategies/arc.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/served_call.h"
#include "support/tiny_trace.h"

namespace moert {
namespace {

/// A layer by ArcLists, as the store asks them, and by the device's rule.
class Both {
 public:
  Both(int experts, int slots)
      : slots_(slots), host_(experts, slots), live_(experts, 0), rows_(experts), nodes_(experts) {
    state_.capacity = slots;
  }

  void Call(const std::vector<int32_t>& counts) {
    HostCall(counts);
    const ArcView lists{&state_, nodes_.data(), counts.data()};
    const cuda::ServedCounts call =
        test::ServeCall(counts, slots_, ++tick_, &rows_, nullptr, nullptr, nullptr, &lists);
    evictions += call.evictions();
    hits +=
        std::count_if(counts.begin(), counts.end(), [](int32_t n) { return n > 0; }) - call.misses;
    for (int e = 0; e < static_cast<int>(rows_.size()); ++e) {
      REQUIRE((rows_[e].slot >= 0) == (live_[e] != 0));
    }
    REQUIRE(state_.p == host_.p());
    for (int list = kArcT1; list < kArcLists; ++list) {
      std::vector<int> contents;
      for (int e = state_.head[list]; e >= 0; e = nodes_[e].next) contents.push_back(e);
      REQUIRE(contents == host_.Contents(static_cast<ArcList>(list)));
    }
  }
  double p() const { return state_.p; }

  int64_t evictions = 0, hits = 0;

 private:
  /// Misses come in the order in which the planner has them; who is in the call stays.
  void HostCall(const std::vector<int32_t>& counts) {
    host_.Request(counts);
    std::vector<int> missing;
    std::vector<uint8_t> allowed = live_;
    for (int e = 0; e < static_cast<int>(counts.size()); ++e) {
      if (counts[e] > 0 && live_[e] == 0) missing.push_back(e);
      if (counts[e] > 0) allowed[e] = 0;
    }
    std::stable_sort(missing.begin(), missing.end(),
                     [&](int a, int b) { return counts[a] > counts[b]; });
    auto held = std::count(live_.begin(), live_.end(), 1);
    std::vector<int> come;
    for (const int e : missing) {
      if (held + std::ssize(come) >= slots_) {
        const int victim = host_.Victim(e, allowed);
        if (victim < 0) break;
        host_.Evicted(victim);
        allowed[victim] = live_[victim] = 0;
        --held;
      }
      come.push_back(e);
    }
    for (const int e : come) {
      host_.Inserted(e, false);
      live_[e] = 1;
    }
  }

  const int slots_;
  ArcLists host_;
  std::vector<uint8_t> live_;
  std::vector<cuda::ServedExpert> rows_;
  ArcState state_;
  std::vector<ArcNode> nodes_;
  int64_t tick_ = 0;
};

TEST_CASE("drawn calls of one and several experts") {
  constexpr int kExperts = 40;
  std::vector<double> zipf(kExperts);
  for (int e = 0; e < kExperts; ++e) zipf[e] = 1.0 / (e + 1);
  for (const int slots : {1, 3, 8, 20, kExperts}) {
    for (const int most : {1, 4, 12}) {
      INFO(slots << " slots, up to " << most << " slots of a call");
      std::mt19937 rng(static_cast<unsigned>(slots * 100 + most));
      std::discrete_distribution<int> skewed(zipf.begin(), zipf.end());
      Both layer(kExperts, slots);
      bool moved = false;
      for (int call = 0; call < 3000; ++call) {
        std::vector<int32_t> counts(kExperts, 0);
        const int drawn = 1 + static_cast<int>(rng() % most);
        const bool scans = call / 40 % 3 == 0;
        for (int i = 0; i < drawn; ++i) {
          const int e = scans ? call * most + i : skewed(rng) + call / 500 * 7;
          ++counts[e % kExperts];
        }
        layer.Call(counts);
        moved = moved || layer.p() > 0;
      }
      CHECK(layer.hits > 0);
      if (slots < kExperts) CHECK(layer.evictions > 0);
      if (slots > 1 && slots < kExperts) CHECK(moved);
    }
  }
}

TEST_CASE("the recorded routing of the trained model") {
  constexpr int kLayers = test::kTinyTraceLayers, kExperts = test::kTinyTraceExperts;
  const TraceHeader header = test::TinyTraceHeader();
  const auto reader =
      OpenRecordedRouting(SourceDir() + "/tests/data/traces/tiny-wikitext2.safetensors", header);
  REQUIRE_OK(reader.status());
  std::vector<std::vector<int32_t>> ids(kLayers);  // of each layer, token after token
  for (auto call = (*reader)->Next(); call.ok() && *call != nullptr; call = (*reader)->Next()) {
    std::vector<int32_t>& layer = ids[(*call)->layer];
    layer.insert(layer.end(), (*call)->ids.begin(), (*call)->ids.end());
  }
  for (const size_t tokens : {1, 3, 8}) {
    for (const int slots : {6, 12, 24}) {
      int64_t hits = 0;
      for (int l = 0; l < kLayers; ++l) {
        INFO(tokens << " tokens, " << slots << " slots, layer " << l);
        REQUIRE(ids[l].size() == 3 * 512 * 4);
        Both layer(kExperts, slots);
        for (size_t i = 0; i < ids[l].size(); i += tokens * 4) {
          std::vector<int32_t> counts(kExperts, 0);
          for (size_t j = i; j < std::min(ids[l].size(), i + tokens * 4); ++j) ++counts[ids[l][j]];
          layer.Call(counts);
        }
        hits += layer.hits;
      }
      CHECK(hits > 0);
    }
  }
}

TEST_CASE("what a prefetch has come to enters the lists as on the host") {
  constexpr int kExperts = 12;
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    ArcLists host(kExperts, 4);
    ArcState state;
    state.capacity = 4;
    std::vector<ArcNode> nodes(kExperts);
    const ArcView lists{&state, nodes.data()};
    const auto victim = static_cast<int>(rng() % 4);
    for (int e = 0; e < 4; ++e) {
      host.Inserted(e, false);
      lists.Inserted(e, false);
    }
    const int expert = 4 + static_cast<int>(rng() % 8);
    const cuda::PrefetchEnd ends[] = {cuda::PrefetchEnd::kNothing, cuda::PrefetchEnd::kArrived,
                                      cuda::PrefetchEnd::kBroken};
    const cuda::PrefetchEnd end = ends[rng() % 3];
    cuda::SettlePrefetch(expert, victim, end, lists);
    if (end != cuda::PrefetchEnd::kNothing) host.Evicted(victim);
    if (end == cuda::PrefetchEnd::kArrived) host.Inserted(expert, true);
    for (int e = 0; e < kExperts; ++e) REQUIRE(nodes[e].list == host.list(e));
  }
}

}  // namespace
}  // namespace moert
