// The effect of a decision on the rows and slots of a layer (serve_misses.cu), for drawn calls: as
// the host's functions, a thread after the other, by every rule that ranks.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "device_array.h"
#include "few_inputs.h"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/cache/serve_usual.h"
#include "support/served_call.h"
#include "tests/support/catch.h"

namespace moert::cuda {
namespace {

using test::DeviceArray;

constexpr int kTopK = 8;
constexpr int kShares = 16;

/// By which kernel a call is decided.
enum class Kernel { kPlain, kElsewhere, kUsual, kUsualElsewhere };
bool OfUsual(Kernel kernel) {
  return kernel == Kernel::kUsual || kernel == Kernel::kUsualElsewhere;
}

/// A layer while its blocks are lent, between drawn calls.
class DrawnLayer {
 public:
  DrawnLayer(int experts, int slots, bool by_worth, std::mt19937* rng)
      : by_worth_(by_worth), rng_(*rng), rows_(experts), use_(experts) {
    layer_.slots = slots;
    layer_.lent = 1;
    std::vector<uint8_t*> places(experts, nullptr);
    for (int s = 0; s < slots; ++s) places[s] = PlaceOf(s);
    slots_.Set(places);
    std::vector<ServedRecord> records(experts);
    for (int e = 0; e < experts; ++e) {
      records[e] = {HostOf(e), 48, 0};
    }
    records_.Set(records);
  }

  /// A call of so many tokens. Returns how many experts left.
  int Call(int tokens, Kernel kernel) {
    const auto experts = static_cast<int>(rows_.size());
    const auto n = static_cast<size_t>(experts);
    std::vector<int32_t> ids, counts(n, 0);
    // Some experts are wanted by many tokens, most by few. A token's own choice is of kTopK.
    const int least = OfUsual(kernel) ? kTopK : 1;
    const int among = least + static_cast<int>(rng_() % (experts - least + 1));
    for (int t = 0; t < tokens; ++t) {
      const auto begin = ids.size();
      while (ids.size() < begin + std::min(kTopK, among)) {
        const auto e = static_cast<int32_t>(rng_() % among);
        if (std::find(ids.begin() + begin, ids.end(), e) == ids.end()) ids.push_back(e);
      }
      ids.resize(begin + kTopK, -1);
    }
    for (const int32_t e : ids) {
      if (e >= 0) ++counts[e];
    }
    const std::vector<float> ones(ids.size(), 1);

    DeviceArray<ServedLayer> layer(std::vector<ServedLayer>{layer_});
    DeviceArray<ServedExpert> rows(rows_);
    DeviceArray<ExpertUse> use(use_);
    const DeviceArray<int32_t> given(ids);
    const DeviceArray<float> weights(ones);
    const DeviceArray<ExpertHandle> ready(n + 1), late(n + 1);
    const test::DecisionOnDevice decision(experts, kTopK, tokens);
    DeviceRouting routing;
    routing.num_experts = experts;
    routing.top_k = kTopK;
    RouteFewArgs route = decision.Route(routing, nullptr);
    route.given_ids = given.get();
    route.given_weights = weights.get();
    ServeMissesArgs args = decision.Serve();
    args.layer = layer.get();
    args.rows = rows.get();
    args.records = records_.get();
    args.slots = slots_.get();
    args.ready = ready.get();
    args.late = late.get();
    if (by_worth_) args.use = use.get();
    args.answers_low = kernel == Kernel::kElsewhere || kernel == Kernel::kUsualElsewhere ? 1 : 0;
    const DeviceArray<float> logits(LogitsOf(ids, tokens));
    const DeviceArray<DeviceFormat> formats(std::vector<DeviceFormat>(1));
    const auto max_tiles = static_cast<int>(MaxTiles(tokens, kTopK, experts));
    const test::TilesOnDevice first(max_tiles, kShares), second(max_tiles, kShares);
    if (OfUsual(kernel)) {
      route.given_ids = nullptr;
      route.scores = logits.get();
      if (by_worth_) args.scores = logits.get();
      test::DecisionOnDevice::MakeTiles(formats.get(), first, second, kShares, &args);
    }
    REQUIRE(IsUsual(route, args) == OfUsual(kernel));
    REQUIRE(LaunchRouteAndServe(route, args, nullptr) == 0);

    if (by_worth_) {
      CheckUse(use.Get(), counts, tokens, OfUsual(kernel) ? logits.Get() : std::vector<float>{});
    }
    // The worth is the device's: its sums may be rounded once where the host's are twice.
    use_ = use.Get();
    std::vector<double> worth(n);
    for (size_t e = 0; e < n; ++e) worth[e] = use_[e].Worth();
    const std::vector<ServedExpert> before = rows_;
    const ServedCounts call = test::ServeCall(counts, layer_.slots, layer_.tick + 1, &rows_,
                                              by_worth_ ? worth.data() : nullptr);
    const std::vector<ServedExpert> after = rows.Get();
    int wrong = 0;
    for (size_t e = 0; e < n; ++e) {
      wrong += after[e].slot != rows_[e].slot || after[e].last_used != rows_[e].last_used ||
               after[e].tokens != rows_[e].tokens;
    }
    CHECK(wrong == 0);
    CHECK(decision.num_copies.Get()[0] == call.copies());
    if (OfUsual(kernel)) {  // its waves: gpu.serve_tiles_test
      CHECK(decision.counts.Get() == counts);
    } else {
      CheckWaves(counts, before, ready.Get(), late.Get(), decision.copies.Get(), call.copies());
    }
    layer_ = layer.Get().front();
    return call.evictions();
  }

 private:
  /// By which every token chooses its ids.
  std::vector<float> LogitsOf(const std::vector<int32_t>& ids, int tokens) const {
    std::vector<float> logits(static_cast<size_t>(tokens) * rows_.size(), -20);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0) continue;
      logits[i / kTopK * rows_.size() + static_cast<size_t>(ids[i])] =
          static_cast<float>(kTopK - i % kTopK);
    }
    return logits;
  }
  /// scores: as the call's routing left them, or none.
  void CheckUse(const std::vector<ExpertUse>& got, const std::vector<int32_t>& counts, int tokens,
                const std::vector<float>& scores) const {
    const auto call = ExpertUse::Call::Of(layer_.calls + 1, tokens);
    int wrong = 0;
    for (size_t e = 0; e < got.size(); ++e) {
      double sum = counts[e];
      if (!scores.empty()) {
        sum = 0;
        for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
          sum += kTopK * static_cast<double>(scores[t * got.size() + e]);
        }
      }
      ExpertUse want = use_[e];
      want.Add(call, counts[e], sum);
      wrong += std::abs(got[e].score - want.score) > 1e-6;
      wrong += std::abs(got[e].recent - want.recent) > 1e-6;
      wrong += std::abs(got[e].lasting - want.lasting) > 1e-6;
      wrong += got[e].chosen != want.chosen;
    }
    CHECK(wrong == 0);
  }
  static uint8_t* PlaceOf(int slot) {
    return reinterpret_cast<uint8_t*>(uintptr_t{4096} * (slot + 1));
  }
  /// Each expert of the call is multiplied once, from where it will be.
  void CheckWaves(const std::vector<int32_t>& counts, const std::vector<ServedExpert>& before,
                  const std::vector<ExpertHandle>& ready, const std::vector<ExpertHandle>& late,
                  const std::vector<RecordCopy>& copies, int num_copies) {
    int wrong = 0, brought = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      const bool comes = counts[e] > 0 && before[e].slot < 0 && rows_[e].slot >= 0;
      const uint8_t* at = counts[e] == 0       ? nullptr
                          : rows_[e].slot >= 0 ? PlaceOf(rows_[e].slot)
                                               : HostOf(e);
      wrong += (comes ? late[e] : ready[e]).record != at;
      wrong += (comes ? ready[e] : late[e]).record != nullptr;
      if (!comes) continue;
      brought += std::count_if(copies.begin(), copies.begin() + num_copies, [&](const auto& copy) {
        return copy.from == HostOf(e) && copy.to == at && copy.bytes == 48;
      });
    }
    CHECK(wrong == 0);
    CHECK(brought == num_copies);
  }
  static const uint8_t* HostOf(size_t e) {
    return reinterpret_cast<const uint8_t*>(uintptr_t{1 << 20} + 64 * e);
  }

  const bool by_worth_;
  std::mt19937& rng_;
  ServedLayer layer_;
  std::vector<ServedExpert> rows_;
  std::vector<ExpertUse> use_;
  const size_t experts_ = rows_.size();
  DeviceArray<uint8_t*> slots_{experts_};
  DeviceArray<ServedRecord> records_{experts_};
};

TEST_CASE("who comes, and who leaves for them") {
  std::mt19937 rng(5);
  int few = 0, many = 0;
  for (const int experts : {16, 64, 128, 200, 512}) {
    for (const bool by_worth : {false, true}) {
      const int slots = kTopK + static_cast<int>(rng() % (experts / 2));
      INFO(experts << " experts, " << slots << " slots, by worth " << by_worth);
      DrawnLayer layer(experts, slots, by_worth, &rng);
      for (int c = 0; c < 60; ++c) {
        const auto kernel = static_cast<Kernel>(c % (experts <= kUsualExperts ? 4 : 2));
        const int most =
            OfUsual(kernel) ? std::min(kTileTokens, (1 << 13) / kTopK / experts) : kFewTokens;
        const int tokens = c % 3 == 2 ? 1 + static_cast<int>(rng() % most) : 1;
        const int left = layer.Call(tokens, kernel);
        few += left > 0 && left <= 8;
        many += left > 8;
      }
    }
  }
  CHECK(few > 100);
  CHECK(many > 20);
}

}  // namespace
}  // namespace moert::cuda
