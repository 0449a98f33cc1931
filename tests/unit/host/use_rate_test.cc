// The tutorial's policy (docs/guide/custom-policy.md, step 6) asked without an engine.
#include "custom_policy/use_rate.cc"  // NOLINT: the example is a program, not a library

#include "support/catch.h"

namespace moert {
namespace {

TEST_CASE("the expert used least leaves") {
  MoeModelSpec model;
  model.layers.resize(2);
  PolicyContext context;
  context.model = &model;
  UseRate policy(0.5);
  const auto route = [&](std::vector<int32_t> counts) {
    RoutingView routing;
    routing.counts = counts;
    policy.Observe(LayerEvent::Routed(context, routing));
  };
  const VictimCandidate candidates[] = {{{0, 0}}, {{0, 1}}, {{0, 2}}};
  const VictimSnapshot snapshot{context, {0, 3}, false, candidates};

  route({3, 0, 1, 0});
  CHECK(policy.Victim(snapshot) == 1);  // the one never used
  route({0, 1, 0, 0});
  route({1, 1, 0, 0});
  CHECK(policy.Victim(snapshot) == 2);  // rates 5/8, 6/8, 1/8: tokens do not count, calls do
  // An expert of a layer that has not run yet, brought by a prefetch.
  const VictimCandidate unseen[] = {{{0, 2}}, {{1, 0}}};
  CHECK(policy.Victim({context, {1, 3}, true, unseen}) == 1);
}

}  // namespace
}  // namespace moert
