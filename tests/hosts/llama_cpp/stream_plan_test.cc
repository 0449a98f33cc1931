#include "stream_plan.h"

#include "support/catch.h"

namespace moert_ggml {
namespace {

constexpr int kLayers = 6, kExperts = 10;

constexpr StreamPlan::Time kWait(1000);  // for ids

/// One pass that names experts 0 to `named` of every layer. Returns the calls that read ids.
int Pass(StreamPlan* plan, int named, bool idle, int64_t tokens = 100) {
  int read = 0;
  for (int l = 0; l < kLayers; ++l) {
    if (!plan->ReadsIds(l, tokens)) continue;
    ++read;
    plan->Named(l, std::span(plan->All(l)).first(static_cast<size_t>(named)), idle, kWait);
  }
  return read;
}

TEST_CASE("what a layer named last is what it will name") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  CHECK(plan.Likely(2).size() == kExperts);  // nothing is known yet
  CHECK(Pass(&plan, 4, false) == kLayers);
  CHECK(plan.Likely(2) == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(plan.All(2).size() == kExperts);
  CHECK(Pass(&plan, 7, false) == kLayers);
  CHECK(plan.Likely(kLayers - 1).size() == 7);
}

TEST_CASE("nobody waits for ids where all experts are named") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  CHECK(Pass(&plan, kExperts, false) == kLayers);
  for (int pass = 0; pass < 16; ++pass) CHECK(Pass(&plan, kExperts, false) == 0);
  CHECK(Pass(&plan, 3, false) == kLayers);  // asked again: batches change
  CHECK(Pass(&plan, 3, false) == kLayers);
}

TEST_CASE("nor where the link has brought whole layers by then") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  CHECK(Pass(&plan, 4, true) == kLayers);
  CHECK(Pass(&plan, 4, true) == 0);
  CHECK(plan.Likely(1).size() == kExperts);
}

TEST_CASE("a layer that did not come in the last pass will not come in this one") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  CHECK(plan.ComesAhead(kLayers - 1));  // nothing is known yet
  CHECK(!plan.ComesAhead(kLayers));
  for (const int layers : {kLayers - 1, kLayers}) {
    for (int l = 0; l < layers; ++l) plan.ReadsIds(l, 100);
    plan.ReadsIds(0, 100);
    CHECK(plan.ComesAhead(kLayers - 2));
    CHECK(plan.ComesAhead(kLayers - 1) == (layers == kLayers));
  }
}

TEST_CASE("a link that waits for ids alone is no reason to leave them unread") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  for (int pass = 0; pass < 4; ++pass) {
    int read = 0;
    for (int l = 0; l < kLayers; ++l) {
      if (!plan.ReadsIds(l, 100)) continue;
      ++read;
      plan.Named(l, std::span(plan.All(l)).first(4), /*idle=*/l == 0, kWait);
    }
    CHECK(read == kLayers);
  }
}

TEST_CASE("ids are read while the CPU shares, by which it finds its part") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  for (int pass = 0; pass < 3; ++pass) {
    CHECK(Pass(&plan, kExperts, true) == kLayers);
    plan.Shares();
  }
  CHECK(Pass(&plan, kExperts, true) == kLayers);
  CHECK(Pass(&plan, kExperts, true) == 0);
}

TEST_CASE("fewer tokens than those that named all are asked again") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  CHECK(Pass(&plan, kExperts, false, 500) == kLayers);
  CHECK(Pass(&plan, kExperts, false, 260) == 0);
  CHECK(Pass(&plan, kExperts, false, 240) == kLayers);
  CHECK(Pass(&plan, kExperts, false, 240) == 0);
}

/// A pass in which every expert that is brought takes the host so long.
int SlowPass(StreamPlan* plan, int first, int named, StreamPlan::Time each, int* ahead) {
  int brought = 0;
  *ahead = 0;
  for (int l = 0; l < kLayers; ++l) {
    const bool reads = plan->ReadsIds(l, 100);
    const auto wanted =
        std::span(plan->All(l))
            .subspan(static_cast<size_t>(reads ? first : 0), static_cast<size_t>(named));
    if (reads) plan->Named(l, wanted, /*idle=*/true, kWait);
    const size_t count = reads ? wanted.size() : kExperts;
    plan->Brought(count, static_cast<int>(count) * each);
    brought += static_cast<int>(count);
    *ahead += plan->ComesAhead(l + 1) ? 1 : 0;
  }
  return brought;
}

TEST_CASE("what the host reads itself is not brought in vain, unless that is quicker than a wait") {
  StreamPlan slow(std::vector<int>(kLayers, kExperts)), fast = slow;
  int ahead = 0;
  for (int pass = 0; pass < 3; ++pass) {  // experts 3 to 6, then 2 to 5, then 1 to 4 are named
    CHECK(SlowPass(&slow, 3 - pass, 4, 2 * kWait, &ahead) == 4 * kLayers);
    CHECK(ahead == 0);
  }
  CHECK(SlowPass(&slow, 1, 4, 2 * kWait, &ahead) == 4 * kLayers);
  CHECK(ahead == kLayers - 1);  // those that were named last are all named
  CHECK(SlowPass(&fast, 3, 4, kWait / 10, &ahead) == 4 * kLayers);
  CHECK(ahead == kLayers - 1);
  CHECK(SlowPass(&fast, 3, 4, kWait / 10, &ahead) == kExperts * kLayers);
}

}  // namespace
}  // namespace moert_ggml
