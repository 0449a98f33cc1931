// Sums, places and orders within a CTA, and the grouping of a prompt, by the library's own code and
// by CUB: the same numbers. With [rates]: the times of both.
#include <cstdio>
#include <random>
#include <vector>

#include "cub_kernels.h"
#include "device_array.h"
#include "device_time.h"
#include "kernels/cuda/route/route.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

std::vector<uint32_t> RandomWords(int count) {
  std::mt19937 rng(7);
  std::vector<uint32_t> words(static_cast<size_t>(count));
  for (uint32_t& word : words) word = static_cast<uint32_t>(rng()) & 0xffffff;
  return words;
}

/// Pairs of a prompt, and both results.
struct Grouping {
  Grouping(int num_pairs, int num_experts)
      : pairs(num_pairs),
        experts(num_experts),
        ids(Ids(num_pairs, num_experts)),
        slots(Slots(num_pairs)),
        sorted(num_pairs),
        firsts(num_experts),
        counts(num_experts),
        chunks(cuda::GroupChunks(num_pairs) * num_experts),
        sorted_ids(num_pairs),
        cub_sorted(num_pairs),
        cub_firsts(num_experts),
        cub_counts(num_experts),
        scratch_bytes(ScratchBytes(OfCub())),
        scratch(scratch_bytes) {}
  static std::vector<int32_t> Ids(int pairs, int experts) {
    std::vector<int32_t> ids;
    for (const uint32_t word : RandomWords(pairs))
      ids.push_back(static_cast<int32_t>(word) % experts);
    return ids;
  }
  static std::vector<int32_t> Slots(int pairs) {
    std::vector<int32_t> slots;
    for (int32_t i = 0; i < pairs; ++i) slots.push_back(i);
    return slots;
  }
  static size_t ScratchBytes(const CubGroup& group) {
    size_t bytes = 0;
    REQUIRE(LaunchCubGroup(group, nullptr, &bytes, nullptr) == cudaSuccess);
    return bytes;
  }
  CubGroup OfCub() const {
    return {pairs,
            experts,
            ids.get(),
            slots.get(),
            sorted_ids.get(),
            cub_sorted.get(),
            cub_counts.get(),
            cub_firsts.get()};
  }
  void RunOwn(cudaStream_t stream) const {
    REQUIRE(cuda::LaunchGroup(ids.get(), pairs, experts,
                              {sorted.get(), firsts.get(), counts.get(), chunks.get()},
                              stream) == 0);
  }
  void RunCub(cudaStream_t stream) const {
    size_t bytes = scratch_bytes;
    REQUIRE(LaunchCubGroup(OfCub(), scratch.get(), &bytes, stream) == cudaSuccess);
  }

  const int pairs, experts;
  const DeviceArray<int32_t> ids, slots, sorted, firsts, counts, chunks;
  const DeviceArray<int32_t> sorted_ids, cub_sorted, cub_firsts, cub_counts;
  const size_t scratch_bytes;
  const DeviceArray<uint8_t> scratch;
};

constexpr int kPrompts[][2] = {{64, 128}, {8 * 512, 128}, {8 * 8192, 128}, {8 * 8192, 512}};

TEST_CASE("own code and CUB's leave the same numbers") {
  const DeviceArray<uint32_t> in(RandomWords(kMostCtaThreads));
  for (int i = 0; i < kNumCtaWays; ++i) {
    const CtaWay& way = kCtaWays[i];
    INFO(way.what);
    const DeviceArray<uint32_t> own(way.threads), cub(way.threads);
    REQUIRE(way.run_own(in.get(), 3, own.get(), nullptr) == cudaSuccess);
    REQUIRE(way.run_cub(in.get(), 3, cub.get(), nullptr) == cudaSuccess);
    CHECK(own.Get() == cub.Get());
  }
  for (const auto& [pairs, experts] : kPrompts) {
    INFO(pairs << " pairs, " << experts << " experts");
    const Grouping grouping(pairs, experts);
    grouping.RunOwn(nullptr);
    grouping.RunCub(nullptr);
    CHECK(grouping.sorted.Get() == grouping.cub_sorted.Get());
    CHECK(grouping.firsts.Get() == grouping.cub_firsts.Get());
    CHECK(grouping.counts.Get() == grouping.cub_counts.Get());
  }
}

// gpu.cub_test [rates]
TEST_CASE("own code beside CUB's", "[.][rates]") {
  constexpr int kRounds = 100;
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  const DeviceArray<uint32_t> in(RandomWords(kMostCtaThreads)), out(kMostCtaThreads);
  std::printf("within a CTA | own, ns | CUB, ns\n");
  for (int i = 0; i < kNumCtaWays; ++i) {
    const CtaWay& way = kCtaWays[i];
    // A round: what more of them take longer.
    const auto round = [&](auto run) {
      const auto of = [&](int rounds) {
        return Microseconds(
            stream, [&](int) { REQUIRE(run(in.get(), rounds, out.get(), stream) == cudaSuccess); });
      };
      return (of(2 * kRounds) - of(kRounds)) * 1e3 / kRounds;
    };
    std::printf("%s | %s %.0f | %s %.0f\n", way.what, way.own, round(way.run_own), way.cub,
                round(way.run_cub));
  }
  std::printf("pairs, experts | LaunchGroup, us | DeviceRadixSort, histogram and scan, us\n");
  for (const auto& [pairs, experts] : kPrompts) {
    const Grouping grouping(pairs, experts);
    const double own = Microseconds(stream, [&](int) { grouping.RunOwn(stream); });
    const double cub = Microseconds(stream, [&](int) { grouping.RunCub(stream); });
    std::printf("%d, %d | %.1f | %.1f\n", pairs, experts, own, cub);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace moert::test
