// The device's router against RouteToken, for every routing kind, groups, biases and ties.
#include "kernels/cuda/route/route.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "device_array.h"
#include "exec/cuda/route/device_routing.h"
#include "moert/router.h"
#include "route/route_token.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

struct Case {
  RoutingKind kind;
  int experts;
  int top_k;
  bool renormalize = false;
  float scaling = 1;
  int groups = 1;
  int top_groups = 1;
  bool bias = false;
  float step = 0;  // logits are multiples of it: ties
  bool logit_bias = false;
  bool scales = false;
  int vocabulary = 0;  // above 0: experts by token id
};

void Check(const Case& c, int tokens) {
  INFO("kind " << static_cast<int>(c.kind) << ", " << c.experts << " experts, top " << c.top_k
               << ", " << c.groups << " groups, bias " << c.bias << ", step " << c.step);
  RoutingSpec spec;
  spec.kind = c.kind;
  spec.top_k = c.top_k;
  spec.renormalize = c.renormalize;
  spec.scaling = c.scaling;
  spec.num_groups = c.groups;
  spec.top_groups = c.top_groups;
  spec.selection_bias = c.bias;
  spec.sparsemixer_eps = 0.05f;
  std::mt19937 rng(c.experts * 7 + c.top_k);
  std::normal_distribution<float> normal;
  std::vector<float> logits(tokens * c.experts);
  for (float& v : logits) {
    v = normal(rng);
    if (c.step > 0) v = std::round(v / c.step) * c.step;
  }
  std::vector<float> bias(c.bias ? c.experts : 0);
  for (float& v : bias) v = 0.3f * normal(rng);
  std::vector<float> logit_bias(c.experts), expert_scales(c.experts, 1.0f);
  for (float& v : logit_bias) v = c.logit_bias ? normal(rng) : 0.0f;
  for (float& v : expert_scales) v += c.scales ? 0.3f * normal(rng) : 0.0f;
  std::vector<int32_t> hash_experts, token_ids(tokens);
  for (int i = 0; i < c.vocabulary * c.top_k; ++i) {
    hash_experts.push_back((i / c.top_k * 11 + i % c.top_k * 3) % c.experts);
  }
  for (int32_t& id : token_ids)
    id = c.vocabulary > 0 ? static_cast<int32_t>(rng() % c.vocabulary) : 0;

  const DeviceArray<float> device_bias(bias.empty() ? std::vector<float>(1) : bias);
  const DeviceArray<float> device_logit_bias(logit_bias), device_scales(expert_scales);
  const DeviceArray<int32_t> device_hash(hash_experts.empty() ? std::vector<int32_t>(1)
                                                              : hash_experts),
      device_tokens(token_ids);
  cuda::DeviceRouting routing =
      cuda::MakeDeviceRouting(spec, c.experts, c.bias ? device_bias.get() : nullptr);
  if (c.logit_bias) routing.logit_bias = device_logit_bias.get();
  if (c.scales) routing.expert_scales = device_scales.get();
  if (c.vocabulary > 0) {
    routing.hash_experts = device_hash.get();
    routing.token_ids = device_tokens.get();
    routing.hash_vocab = c.vocabulary;
  }
  const DeviceArray<float> scores(logits);
  const DeviceArray<int32_t> ids(tokens * c.top_k);
  const DeviceArray<float> weights(tokens * c.top_k);
  REQUIRE(cuda::LaunchTopK(routing, tokens, scores.get(), ids.get(), weights.get(), nullptr) == 0);
  const std::vector<float> got_scores = scores.Get();
  const std::vector<int32_t> got_ids = ids.Get();
  const std::vector<float> got_weights = weights.Get();

  std::vector<float> want_scores(c.experts), want_weights(c.top_k);
  std::vector<int32_t> want_ids(c.top_k);
  int other_ids = 0;
  for (int t = 0; t < tokens; ++t) {
    std::vector<float> row(logits.begin() + t * c.experts, logits.begin() + (t + 1) * c.experts);
    for (int e = 0; e < c.experts; ++e) row[e] += logit_bias[e];
    if (c.vocabulary > 0) {
      std::copy_n(hash_experts.begin() + token_ids[t] * c.top_k, c.top_k, want_ids.begin());
      WeighChosen(spec, row, want_scores.data(), want_ids.data(), want_weights.data());
    } else {
      REQUIRE(RouteToken(spec, row, bias, want_scores.data(), want_ids.data(), want_weights.data())
                  .ok());
    }
    for (int j = 0; j < c.top_k; ++j) want_weights[j] *= expert_scales[want_ids[j]];
    for (int e = 0; e < c.experts; ++e) {
      CHECK(std::fabs(got_scores[t * c.experts + e] - want_scores[e]) < 1e-6f);
    }
    bool same = true;
    for (int j = 0; j < c.top_k; ++j) same = same && got_ids[t * c.top_k + j] == want_ids[j];
    other_ids += same ? 0 : 1;
    if (!same) continue;
    for (int j = 0; j < c.top_k; ++j) {
      CHECK(std::fabs(got_weights[t * c.top_k + j] - want_weights[j]) <=
            1e-5f * std::fabs(want_weights[j]));
    }
  }
  // Scores that differ in the last bit may swap; equal logits may not.
  CHECK(other_ids <= (c.step > 0 ? tokens / 100 : 0));
}

TEST_CASE("softmax then top-k, with groups and biases") {
  for (const int experts : {8, 60, 64, 128, 160, 512, 1024}) {
    Check({RoutingKind::kSoftmaxTopK, experts, 4}, 300);
    Check({RoutingKind::kSoftmaxTopK, experts, 8, true, 2.5f}, 300);
    Check({RoutingKind::kTopKSoftmax, experts, 2, false, 1, 1, 1, false, 0.5f}, 300);
  }
  Check({RoutingKind::kSoftmaxTopK, 160, 6, false, 16, 8, 3}, 300);
  Check({RoutingKind::kSoftmaxTopK, 64, 6, false, 1, 1, 1, true}, 300);
}

TEST_CASE("slots are grouped by expert, ascending, whatever their number") {
  std::mt19937 rng(5);
  for (const int experts : {1, 7, 64, 128, 512, 1024}) {
    for (const int pairs : {1, 8, 31, 333, 1023, 1024, 1025, 5000, 65536}) {
      std::vector<int32_t> ids(pairs);
      // Some experts are popular, some ids are of experts elsewhere.
      for (int32_t& id : ids) {
        id =
            rng() % 16 == 0 ? -1 : static_cast<int32_t>(std::min(rng() % experts, rng() % experts));
      }
      std::vector<float> weights(pairs, 0.5f);
      const DeviceArray<int32_t> device_ids(ids), sorted(pairs), firsts(experts), counts(experts),
          chunks(static_cast<size_t>(cuda::GroupChunks(pairs)) * experts);
      const DeviceArray<float> device_weights(weights);
      const DeviceArray<cuda::SelectionTally> tally(std::vector<cuda::SelectionTally>(experts + 1));
      const cuda::SlotGroups groups{sorted.get(), firsts.get(), counts.get(), chunks.get()};
      REQUIRE(cuda::LaunchGroup(device_ids.get(), pairs, experts, groups, nullptr,
                                device_weights.get(), tally.get()) == 0);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      const std::vector<int32_t> got = sorted.Get(), at = firsts.Get(), count = counts.Get();
      const std::vector<cuda::SelectionTally> tallied = tally.Get();
      std::vector<int32_t> want;
      bool same = true;
      for (int e = 0; e < experts; ++e) {
        same = same && at[e] == static_cast<int32_t>(want.size());
        for (int i = 0; i < pairs; ++i) {
          if (ids[i] == e) want.push_back(i);
        }
        same = same && count[e] == static_cast<int32_t>(want.size()) - at[e];
        same = same && tallied[e].slots == static_cast<uint32_t>(count[e]);
        same = same && tallied[e].mass == 0.5 * count[e];
      }
      same = same && std::equal(want.begin(), want.end(), got.begin());
      INFO(experts << " experts, " << pairs << " pairs");
      CHECK(same);
    }
  }
}

TEST_CASE("selections are tallied while tokens are grouped") {
  std::mt19937 rng(11);
  for (const int experts : {5, 64, 130}) {
    const int calls = 3, tokens = 37, top_k = 4, pairs = tokens * top_k;
    const DeviceArray<int32_t> sorted(pairs), firsts(experts), counts(experts), chunks(experts);
    const DeviceArray<cuda::SelectionTally> tally(std::vector<cuda::SelectionTally>(experts + 1));
    std::vector<int64_t> slots(experts), used(experts);
    std::vector<double> mass(experts);
    for (int call = 0; call < calls; ++call) {
      std::vector<int32_t> ids(pairs);
      std::vector<float> weights(pairs);
      std::vector<uint8_t> seen(experts);
      for (int i = 0; i < pairs; ++i) {
        ids[i] = static_cast<int32_t>(std::min(rng() % experts, rng() % experts));
        weights[i] = static_cast<float>(rng() % 1000) * 1e-3f;
        ++slots[ids[i]];
        mass[ids[i]] += weights[i];
        used[ids[i]] += !seen[ids[i]];
        seen[ids[i]] = 1;
      }
      const DeviceArray<int32_t> device_ids(ids);
      const DeviceArray<float> device_weights(weights);
      const cuda::SlotGroups groups{sorted.get(), firsts.get(), counts.get(), chunks.get()};
      REQUIRE(cuda::LaunchGroup(device_ids.get(), pairs, experts, groups, nullptr,
                                device_weights.get(), tally.get()) == 0);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    }
    const std::vector<cuda::SelectionTally> got = tally.Get();
    for (int e = 0; e < experts; ++e) {
      CHECK(got[e].slots == slots[e]);
      CHECK(got[e].calls == used[e]);
      CHECK(got[e].mass == Approx(mass[e]).margin(1e-4));
    }
    CHECK(got[experts].slots == calls * pairs);
    CHECK(got[experts].calls == calls);
  }
}

TEST_CASE("sigmoid, biased groups, top-k") {
  Check({RoutingKind::kSigmoidGrouped, 256, 8, true, 2.5f, 8, 4, true}, 500);
  Check({RoutingKind::kSigmoidGrouped, 64, 6, true, 1, 1, 1, true}, 500);
  Check({RoutingKind::kSigmoidGrouped, 16, 4, false, 1, 16, 5}, 500);
  Check({RoutingKind::kSigmoidGrouped, 384, 8, true, 2.827f, 1, 1, true}, 500);
}

TEST_CASE("top-k of logits, weights their sigmoids") {
  for (const int experts : {16, 128, 513}) {
    Check({RoutingKind::kTopKSigmoid, experts, 1}, 300);
    Check({RoutingKind::kTopKSigmoid, experts, 4, false, 1, 1, 1, false, 0.5f}, 300);
  }
}

TEST_CASE("square roots of softplus, biased groups") {
  Check({RoutingKind::kSqrtSoftplusGrouped, 256, 6, true, 1.5f, 1, 1, true}, 500);
  Check({RoutingKind::kSqrtSoftplusGrouped, 64, 4, true, 1, 8, 3, true}, 500);
  Check({RoutingKind::kSqrtSoftplusGrouped, 1024, 8}, 300);
}

TEST_CASE("biases of logits, scales of experts, experts by token id") {
  Case c{RoutingKind::kTopKSoftmax, 128, 4};
  c.logit_bias = true;
  Check(c, 300);
  c.scales = true;
  Check(c, 300);
  c = {RoutingKind::kSoftmaxTopK, 60, 8, true};
  c.scales = true;
  Check(c, 300);
  c = {RoutingKind::kSqrtSoftplusGrouped, 384, 6, true, 2.5f};
  c.vocabulary = 1000;
  Check(c, 500);
  c.scales = c.logit_bias = true;
  Check(c, 500);
}

TEST_CASE("sparsemixer") {
  Check({RoutingKind::kSparseMixer, 16, 2}, 1000);
  Check({RoutingKind::kSparseMixer, 16, 2, false, 1, 1, 1, false, 0.25f}, 1000);
}

}  // namespace
}  // namespace moert::test
