// The two times whose ratio bounds a prefetch: the window and a transfer, as measured.
#include "prefetch/window_estimate.h"
#include "tests/support/catch.h"
#include "transfer/link_pacer.h"

namespace moert {
namespace {

struct Clockwork {
  HardwareProfile profile;
  MoeModelSpec model;
  WindowEstimate window{3, &profile};
  int64_t now = 0, stalled = 0;

  PolicyContext Context(int64_t step, int layer, Phase phase) const {
    PolicyContext context;
    context.step = step;
    context.layer = layer;
    context.phase = phase;
    context.now_ns = now;
    return context;
  }
  void Step(int64_t step, Phase phase, int64_t tokens, std::vector<int64_t> layer_ns,
            int64_t stall_ns = 0) {
    for (int l = 0; l < 3; ++l) {
      window.Routed(Context(step, l, phase), tokens, stalled);
      now += layer_ns[l] + stall_ns;
      stalled += stall_ns;
    }
  }
};

TEST_CASE("a window lasts from a layer's routing to the next one's, waiting excluded") {
  Clockwork c;
  CHECK(c.window.WindowNs(c.Context(0, 1, Phase::kDecode), 1) == c.profile.LayerNs(false, 1));
  CHECK(c.window.WindowNs(c.Context(0, 1, Phase::kPrefill), 100) == c.profile.LayerNs(true, 100));
  for (int s = 0; s < 50; ++s) c.Step(s, Phase::kDecode, 1, {300, 500, 700}, /*stall_ns=*/10'000);
  CHECK(c.window.WindowNs(c.Context(9, 0, Phase::kDecode), 1) == 300);
  CHECK(c.window.WindowNs(c.Context(9, 1, Phase::kDecode), 1) == 500);
  // The last layer's reaches to the first layer of the next step.
  CHECK(c.window.WindowNs(c.Context(9, 2, Phase::kDecode), 1) == 700);
  // Other phases and sizes keep their own.
  CHECK(c.window.WindowNs(c.Context(9, 1, Phase::kPrefill), 1) == c.profile.LayerNs(true, 1));
  CHECK(c.window.WindowNs(c.Context(9, 1, Phase::kDecode), 4) == c.profile.LayerNs(false, 4));
}

TEST_CASE("it follows what it measures") {
  Clockwork c;
  for (int s = 0; s < 50; ++s) c.Step(s, Phase::kDecode, 1, {300, 500, 700});
  for (int s = 50; s < 150; ++s) c.Step(s, Phase::kDecode, 1, {3000, 500, 700});
  CHECK(c.window.WindowNs(c.Context(9, 0, Phase::kDecode), 1) == Approx(3000).epsilon(0.01));
}

TEST_CASE("steps that overlap, end early or pause are not mistaken for windows") {
  Clockwork c;
  for (int s = 0; s < 20; ++s) c.Step(s, Phase::kDecode, 1, {300, 500, 700});
  // Two steps interleaved.
  for (int l = 0; l < 3; ++l) {
    for (const int64_t step : {20, 21}) {
      c.window.Routed(c.Context(step, l, Phase::kDecode), 1, c.stalled);
      c.now += 7'000;
    }
  }
  CHECK(c.window.WindowNs(c.Context(9, 0, Phase::kDecode), 1) == 300);
  // A user who thinks for a minute stretches the last window by a bounded share only.
  c.Step(22, Phase::kDecode, 1, {300, 500, 60'000'000'000});
  c.Step(23, Phase::kDecode, 1, {300, 500, 700});
  CHECK(c.window.WindowNs(c.Context(9, 2, Phase::kDecode), 1) < 1500);
  // Nor if he always does.
  for (int s = 24; s < 100; ++s) c.Step(s, Phase::kDecode, 1, {300, 500, 60'000'000'000});
  CHECK(c.window.WindowNs(c.Context(9, 2, Phase::kDecode), 1) <= 2000);
}

TEST_CASE("the link's estimate is the profile's until it is measured, exact if the profile is") {
  HardwareProfile profile;
  profile.link_bytes_per_s = 1e9;
  profile.link_latency_ns = 1000;
  LinkEstimate link(&profile);
  CHECK(link.TransferNs(5000) == 6000);
  for (int i = 0; i < 100; ++i) link.Observe(5000, i * 10'000, i * 10'000 + 6000);
  CHECK(link.TransferNs(5000) == 6000);
  CHECK(link.TransferNs(9000) == 10'000);
}

TEST_CASE("transfers that share the link are each charged their part of it") {
  HardwareProfile profile;
  profile.link_bytes_per_s = 1e9;
  profile.link_latency_ns = 0;
  LinkEstimate link(&profile);
  // Two readers: each transfer takes 8000, one arrives every 4000: twice what the profile says of
  // 2000 bytes.
  for (int i = 0; i < 300; ++i) link.Observe(2000, i * 4000, i * 4000 + 8000);
  CHECK(link.TransferNs(2000) == Approx(4000).epsilon(0.01));
  // An idle link in between is not charged.
  for (int i = 0; i < 300; ++i)
    link.Observe(2000, 1'000'000'000 + i * 90'000, 1'000'000'000 + i * 90'000 + 3000);
  CHECK(link.TransferNs(2000) == Approx(3000).epsilon(0.01));
}

}  // namespace
}  // namespace moert
