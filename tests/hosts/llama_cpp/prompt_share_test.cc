#include "prompt_share.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "support/catch.h"

namespace moert_ggml {
namespace {

constexpr int kLayers = 12, kExperts = 128, kTopK = 8;

enum class Way { kShared, kByLink, kByCpu };

/// A GPU, its link and a CPU on a virtual clock, in nanoseconds.
struct Machine {
  double link, expert, pair;  // an expert over the link; one on the CPU, and each pair of it
  double held = 0;            // share of the experts that slots hold
  double attention = 150e3;   // what comes behind the products, up to the next layer's ids
  double product = 1e3;       // of an expert on the GPU
  double noise = 0;           // of times, relative
  int64_t few = 32;           // fewer tokens: nothing is staged ahead
  std::mt19937_64 random{1}, times{2};
  PromptShare share{std::vector<int>(kLayers, kExperts)};
  std::vector<std::vector<int32_t>> likely{kLayers};  // named in the last pass
  double now = 0, link_free = 0;
  int64_t on_cpu = 0;

  double Noisy(double time) {
    return time * std::max(0.2, std::normal_distribution<double>(1, noise)(times));
  }

  /// Experts of a layer are chosen unequally, in an order of its own.
  std::vector<int32_t> Route(int layer, int64_t tokens) {
    std::vector<int32_t> order(kExperts), pairs(kExperts, 0);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(static_cast<uint64_t>(layer)));
    std::vector<double> weights;
    for (int i = 0; i < kExperts; ++i) weights.push_back(1 / std::sqrt(1.0 + i));
    std::discrete_distribution<int> choose(weights.begin(), weights.end());
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int> of_token;
      while (of_token.size() < kTopK) {
        const int e = choose(random);
        if (std::count(of_token.begin(), of_token.end(), e) == 0) of_token.push_back(e);
      }
      for (const int e : of_token) ++pairs[static_cast<size_t>(order[static_cast<size_t>(e)])];
    }
    return pairs;
  }

  double Bring(int64_t experts) {
    const double time = Noisy(link * static_cast<double>(experts));
    link_free = std::max(link_free, now) + time;
    if (experts >= 4) share.Brought(experts, PromptShare::Time(static_cast<int64_t>(time)));
    return link_free;
  }

  /// Time of a pass over the layers.
  double Pass(int64_t tokens, Way way) {
    const double begin = now;
    const bool streams = tokens >= few;
    std::vector<uint8_t> in_slots(kExperts), staged(kExperts, 0);
    for (int e = 0; e < kExperts; ++e) in_slots[static_cast<size_t>(e)] = e < held * kExperts;
    for (int l = 0; l < kLayers; ++l) {
      const std::vector<int32_t> pairs = Route(l, tokens);
      std::vector<int32_t> taken, named;
      for (int32_t e = 0; e < kExperts; ++e) {
        const auto at = static_cast<size_t>(e);
        if (pairs[at] > 0) named.push_back(e);
        if (way == Way::kByCpu && pairs[at] > 0 && in_slots[at] == 0) taken.push_back(e);
      }
      if (way == Way::kShared) {
        taken = share.Take({l, tokens, streams, pairs, in_slots, staged},
                           PromptShare::Time(static_cast<int64_t>(now)));
      }
      int64_t rest = 0, cpu_pairs = 0;
      for (const int32_t e : taken) {
        cpu_pairs += pairs[static_cast<size_t>(e)];
        staged[static_cast<size_t>(e)] = 1;
      }
      for (const int32_t e : named) {
        rest += in_slots[static_cast<size_t>(e)] == 0 && staged[static_cast<size_t>(e)] == 0;
      }
      const double copied = Bring(rest);
      const double products = copied + product * static_cast<double>(named.size());
      likely[static_cast<size_t>(l)] = named;
      staged.assign(kExperts, 0);
      if (streams && way != Way::kByCpu && l + 1 < kLayers)
        StageNext(l + 1, tokens, way, in_slots, &staged);
      double end = now;
      if (!taken.empty()) {
        on_cpu += std::ssize(taken);
        const double took = Noisy(expert * static_cast<double>(taken.size()) +
                                  pair * static_cast<double>(cpu_pairs));
        end += took + 60e3;  // and what lies around the job
        share.Computed(std::ssize(taken), cpu_pairs, PromptShare::Time(static_cast<int64_t>(took)),
                       copied > now + took);
      }
      now = std::max(products, end) + Noisy(attention);
    }
    return now - begin;
  }

  void StageNext(int next, int64_t tokens, Way way, const std::vector<uint8_t>& in_slots,
                 std::vector<uint8_t>* staged) {
    std::vector<int32_t> ahead = likely[static_cast<size_t>(next)];
    if (ahead.empty()) {
      ahead.resize(kExperts);
      std::iota(ahead.begin(), ahead.end(), 0);
    }
    if (way == Way::kShared) ahead = share.Ahead(next, tokens, ahead, in_slots);
    int64_t brought = 0;
    for (const int32_t e : ahead) {
      if (in_slots[static_cast<size_t>(e)] != 0) continue;
      (*staged)[static_cast<size_t>(e)] = 1;
      ++brought;
    }
    Bring(brought);
  }

  /// The mean of some passes, behind `first` others.
  double Mean(int64_t tokens, Way way, int first = 3, int passes = 3) {
    for (int i = 0; i < first; ++i) Pass(tokens, way);
    double sum = 0;
    on_cpu = 0;
    for (int i = 0; i < passes; ++i) sum += Pass(tokens, way);
    return sum / passes;
  }
};

TEST_CASE("never slower than the better of all by the link and all by the CPU") {
  double most = 0, gained = 0;
  int cases = 0;
  for (const double link : {20e3, 50e3, 100e3}) {
    for (const double cpu : {5e3, 18e3, 60e3, 400e3}) {
      for (const double pairs : {0.2, 0.7}) {
        for (const double held : {0.0, 0.25, 0.9}) {
          for (const int64_t tokens : {9, 40, 200}) {
            for (const double noise : {0.0, 0.1}) {
              Machine machine{link, cpu, pairs * cpu, held};
              machine.noise = noise;
              Machine by_link = machine, by_cpu = machine;
              const double shared = machine.Mean(tokens, Way::kShared);
              const double better =
                  std::min(by_link.Mean(tokens, Way::kByLink), by_cpu.Mean(tokens, Way::kByCpu));
              CAPTURE(link, cpu, pairs, held, tokens, noise, shared, better);
              CHECK(shared < (noise > 0 ? 1.08 : 1.06) * better);
              most = std::max(most, shared / better);
              gained += better / shared;
              ++cases;
            }
          }
        }
      }
    }
  }
  INFO("at most " << most << " of the better one's time; gained " << gained / cases);
  CHECK(gained / cases > 1.15);
}

using Time = PromptShare::Time;

/// One layer call, of experts that have 1, 2, 3, ... pairs; `first` of them lie in slots.
std::vector<int32_t> TakeOne(PromptShare* share, int first, bool streams = false) {
  std::vector<int32_t> pairs(kExperts);
  std::iota(pairs.begin(), pairs.end(), 1);
  std::vector<uint8_t> in_slots(kExperts, 0);
  std::fill_n(in_slots.begin(), first, 1);
  return share->Take({0, 100, streams, pairs, in_slots, {}}, Time(0));
}

TEST_CASE("the CPU takes experts with the fewest pairs, of those that are missing") {
  PromptShare share(std::vector<int>(1, kExperts));
  CHECK(TakeOne(&share, 8).empty());  // nothing is known of the link
  share.Brought(10, Time(1'000'000));
  const std::vector<int32_t> probe = TakeOne(&share, 8);
  CHECK(!share.helps());
  CHECK(probe == std::vector<int32_t>{8, 9, 10, 11});
  share.Computed(4, 42, Time(4 * 20'000 + 42 * 2'000), false);
  const std::vector<int32_t> taken = TakeOne(&share, 8);
  CHECK(share.helps());
  REQUIRE(taken.size() > 30);
  for (size_t i = 0; i < taken.size(); ++i) CHECK(taken[i] == 8 + static_cast<int32_t>(i));
  CHECK(TakeOne(&share, kExperts).empty());
}

TEST_CASE("experts that the CPU will take are not brought ahead") {
  PromptShare share(std::vector<int>(1, kExperts));
  std::vector<int32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  std::vector<uint8_t> in_slots(kExperts, 0);
  in_slots[0] = in_slots[1] = 1;
  CHECK(share.Ahead(0, 100, all, in_slots).size() == kExperts);
  share.Brought(10, Time(1'000'000));
  TakeOne(&share, 2);
  share.Computed(4, 18, Time(4 * 20'000 + 18 * 2'000), false);
  const size_t taken = TakeOne(&share, 2).size();
  const std::vector<int32_t> ahead = share.Ahead(0, 100, all, in_slots);
  CHECK(ahead.size() == kExperts - taken);
  for (int32_t e = 0; e < 2; ++e) CHECK(std::count(ahead.begin(), ahead.end(), e) == 1);
  CHECK(std::count(ahead.begin(), ahead.end(), 2) == 0);
  // More tokens: more pairs, and less for the CPU.
  CHECK(share.Ahead(0, 1000, all, in_slots).size() > ahead.size());
}

TEST_CASE("the first pass finds out what the CPU needs, though all comes ahead") {
  Machine machine{100e3, 20e3, 4e3};
  machine.Pass(400, Way::kShared);
  CHECK(machine.share.helps());
  CHECK(machine.on_cpu > 10 * kLayers);
}

TEST_CASE("a CPU that others keep busy is left alone, and found again") {
  Machine machine{100e3, 20e3, 10e3};
  const double before = machine.Mean(40, Way::kShared);
  machine.expert *= 400;
  machine.pair *= 400;
  machine.Mean(40, Way::kShared, 20);
  CHECK(machine.on_cpu <= 3 * kLayers);
  machine.expert /= 400;
  machine.pair /= 400;
  CHECK(machine.Mean(40, Way::kShared, 120) < 1.05 * before);
  CHECK(machine.on_cpu > 20 * kLayers);
}

}  // namespace
}  // namespace moert_ggml
