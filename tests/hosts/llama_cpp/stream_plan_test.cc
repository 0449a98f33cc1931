#include "stream_plan.h"

#include "support/catch.h"

namespace moert_ggml {
namespace {

constexpr int kLayers = 6, kExperts = 10;

/// One pass that names experts 0 to `named` of every layer. Returns the calls that read ids.
int Pass(StreamPlan* plan, int named, bool idle) {
  int read = 0;
  for (int l = 0; l < kLayers; ++l) {
    if (!plan->ReadsIds(l)) continue;
    ++read;
    plan->Named(l, std::span(plan->All(l)).first(static_cast<size_t>(named)), idle);
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
  CHECK(plan.Comes(kLayers - 1));  // nothing is known yet
  CHECK(!plan.Comes(kLayers));
  for (const int layers : {kLayers - 1, kLayers}) {
    for (int l = 0; l < layers; ++l) plan.ReadsIds(l);
    plan.ReadsIds(0);
    CHECK(plan.Comes(kLayers - 2));
    CHECK(plan.Comes(kLayers - 1) == (layers == kLayers));
  }
}

TEST_CASE("a link that waits for ids alone is no reason to leave them unread") {
  StreamPlan plan(std::vector<int>(kLayers, kExperts));
  for (int pass = 0; pass < 4; ++pass) {
    int read = 0;
    for (int l = 0; l < kLayers; ++l) {
      if (!plan.ReadsIds(l)) continue;
      ++read;
      plan.Named(l, std::span(plan.All(l)).first(4), /*idle=*/l == 0);
    }
    CHECK(read == kLayers);
  }
}

}  // namespace
}  // namespace moert_ggml
