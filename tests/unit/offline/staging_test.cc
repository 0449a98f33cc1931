// Copies by way of pinned memory, over a runtime that copies as late as it may.
#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "host/cuda/staged_copies.h"
#include "late_runtime.h"
#include "offline/cuda/lanes.h"
#include "support/catch.h"

namespace moert {
namespace {

using test::runtime;
using Values = std::vector<float>;

/// Both ways of both classes, by floats.
struct Way {
  std::function<absl::Status(const float*from, int64_t count, float*to)> up, down;
};

Way WayOf(offline::Staging* s) {
  const auto bytes = [](int64_t count) { return count * static_cast<int64_t>(sizeof(float)); };
  return {[s, bytes](const float* from, int64_t count, float* to) {
            return s->Upload(from, bytes(count), to, nullptr);
          },
          [s, bytes](const float* from, int64_t count, float* to) {
            return s->Download(from, bytes(count), to, nullptr);
          }};
}
Way WayOf(host::StagedCopies* s) {
  return {[s](const float* from, int64_t count, float* to) {
            return s->Upload(from, count, to, nullptr);
          },
          [s](const float* from, int64_t count, float* to) {
            return s->Download(from, count, to, nullptr);
          }};
}

Values Random(int64_t count, std::mt19937* rng) {
  Values values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>((*rng)() % 100000);
  return values;
}

constexpr int64_t kHalf = offline::Staging::kHalfBytes / static_cast<int64_t>(sizeof(float));

/// Two values there, the same back; the caller's memory is its own again after each call.
absl::Status ThereAndBack(const Way& way, int64_t a, int64_t b, bool* right) {
  std::mt19937 rng(static_cast<uint32_t>(a));
  const Values first = Random(a, &rng), second = Random(b, &rng);
  Values device_a(first.size()), device_b(second.size()), passing = first;
  *right = false;
  // Late copies must not write into memory that is gone.
  struct Waiting {
    ~Waiting() { runtime.WaitForAll(); }
  } const waiting;
  if (auto s = way.up(passing.data(), a, device_a.data()); !s.ok()) return s;
  std::fill(passing.begin(), passing.end(), -1.0f);
  passing = second;
  if (auto s = way.up(passing.data(), b, device_b.data()); !s.ok()) return s;
  std::fill(passing.begin(), passing.end(), -1.0f);
  Values back_b(second.size()), back_a(first.size());
  if (auto s = way.down(device_b.data(), b, back_b.data()); !s.ok()) return s;
  if (auto s = way.down(device_a.data(), a, back_a.data()); !s.ok()) return s;
  *right = back_a == first && back_b == second;
  return absl::OkStatus();
}

template <typename Copies>
void Check() {
  for (const bool refuses : {false, true}) {
    runtime.Begin();
    runtime.refuses_pinning = refuses;
    Copies copies;
    const Way way = WayOf(&copies);
    for (const int64_t a :
         {int64_t{0}, int64_t{1}, kHalf - 1, kHalf, kHalf + 1, 2 * kHalf, 3 * kHalf + 7}) {
      for (const int64_t b : {int64_t{3}, kHalf + 5, 4 * kHalf}) {
        INFO(a << " and " << b << (refuses ? " values, not pinned" : " values"));
        bool right = false;
        REQUIRE_OK(ThereAndBack(way, a, b, &right));
        CHECK(right);
      }
    }
    CHECK(runtime.left() == (refuses ? 2 : 3));  // events, and memory
  }
  CHECK(runtime.left() == 0);
  // Each call fails once.
  for (int n = 1;; ++n) {
    INFO("call " << n << " fails");
    runtime.Begin(n);
    {
      Copies copies;
      const Way way = WayOf(&copies);
      bool right = false;
      const absl::Status status = ThereAndBack(way, 2 * kHalf + 9, kHalf + 1, &right);
      CHECK(right == status.ok());
      if (runtime.calls() < n) {
        CHECK(n > 20);
        break;
      }
      REQUIRE_OK(ThereAndBack(way, 3 * kHalf + 1, 2 * kHalf, &right));  // and goes on
      CHECK(right);
    }
    CHECK(runtime.left() == 0);
  }
}

TEST_CASE("the library's staging") { Check<offline::Staging>(); }
TEST_CASE("the example host's staging") { Check<host::StagedCopies>(); }

TEST_CASE("a download of up to a half that fails leaves the caller's memory alone") {
  for (int n = 1;; ++n) {
    offline::Staging staging;
    const Way way = WayOf(&staging);
    const Values device(static_cast<size_t>(kHalf), 2.0f);
    Values to(device.size(), 1.0f);
    runtime.Begin(n);
    const absl::Status status = way.down(device.data(), kHalf, to.data());
    runtime.WaitForAll();
    CHECK(to == Values(to.size(), status.ok() ? 2.0f : 1.0f));
    if (runtime.calls() < n) break;
  }
}

}  // namespace
}  // namespace moert
