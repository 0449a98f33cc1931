// The tiles of both waves of a decision: every expert that is wanted once, in the wave that it is
// in, and shares that follow one another.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "device_array.h"
#include "few_inputs.h"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/few/group_gemm.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

constexpr int kShares = 264;

/// Shares go from the first item to the last.
void CheckShares(const TilesOnDevice& table) {
  const std::vector<cuda::Tile> tiles = table.Tiles();
  const auto count = static_cast<int>(tiles.size());
  for (int p = 0; p < 2; ++p) {
    const std::vector<cuda::Position> starts = table.starts[p].Get();
    CHECK((starts.front().tile == 0 && starts.front().item == 0));
    CHECK((starts.back().tile == count && starts.back().item == 0));
    for (size_t i = 1; i < starts.size(); ++i) {
      CHECK(std::make_pair(starts[i - 1].tile, starts[i - 1].item) <=
            std::make_pair(starts[i].tile, starts[i].item));
      if (starts[i].tile < count) CHECK(starts[i].item < tiles[starts[i].tile].matrix[p].items);
    }
  }
  const std::vector<int32_t> ready = table.ready.Get();
  CHECK(std::all_of(ready.begin(), ready.begin() + count, [](int32_t r) { return r == 0; }));
  CHECK(table.ticket.Get() == std::vector<int32_t>{0, 0});
}

const uint8_t* Address(int64_t kind, int64_t number) {
  return reinterpret_cast<const uint8_t*>((kind << 40) + number * 4096);
}
constexpr int kHost = 1, kSlot = 2, kShared = 3;

/// A layer whose even experts are there, until slots run out.
struct Layer {
  Layer(const Choice& c, int slots, std::mt19937* rng)
      : rows(c.experts), records(c.experts), places(c.experts) {
    for (int e = 0; e < c.experts; ++e) {
      records[e] = {Address(kHost, e), 4096, static_cast<int32_t>((*rng)() % 2)};
      if (e < slots) places[e] = const_cast<uint8_t*>(Address(kSlot, e));
      if (e % 2 == 0 && e / 2 < slots) rows[e] = {static_cast<int64_t>((*rng)() % 50), 1, e / 2};
    }
    layer.tick = 50;
    layer.slots = slots;
    layer.lent = 1;
  }
  std::vector<cuda::ServedExpert> rows;
  std::vector<cuda::ServedRecord> records;
  std::vector<uint8_t*> places;
  cuda::ServedLayer layer;
};

void Check(const Choice& c, int tokens, int slots, bool shared) {
  INFO(c.experts << " experts, top " << c.top_k << ", " << tokens << " tokens, " << slots
                 << " slots, shared " << shared);
  std::mt19937 rng(c.experts + tokens + slots);
  const Layer layer(c, slots, &rng);
  const std::vector<cuda::DeviceFormat> formats = {
      {MatrixOf(cuda::Packing::kW4, 768, 2048), MatrixOf(cuda::Packing::kW4, 768, 2048),
       MatrixOf(cuda::Packing::kW4, 2048, 768)},
      {MatrixOf(cuda::Packing::kBf16, 768, 2048), MatrixOf(cuda::Packing::kBf16, 768, 2048),
       MatrixOf(cuda::Packing::kW8, 2048, 768)}};
  const DeviceArray<cuda::DeviceFormat> device_formats(formats);
  const DeviceArray<float> logits(RandomFloats(static_cast<size_t>(tokens) * c.experts, &rng));
  const DeviceArray<int32_t> shared_slots(tokens);
  const DeviceArray<cuda::ServedExpert> rows(layer.rows);
  const DeviceArray<cuda::ServedRecord> records(layer.records);
  const DeviceArray<uint8_t*> places(layer.places);
  const DeviceArray<cuda::ServedLayer> state(std::vector<cuda::ServedLayer>{layer.layer});
  cuda::ExpertHandle handle;
  if (shared) handle = {Address(kShared, 0), 0, 0};
  const DecisionOnDevice decision(c.experts, c.top_k, tokens, handle);
  const auto max_tiles = static_cast<int>(cuda::MaxTiles(tokens, c.top_k, c.experts));
  const TilesOnDevice ready(max_tiles, kShares), late(max_tiles, kShares);

  cuda::RouteFewArgs route = decision.Route(c.Routing(), logits.get());
  route.shared_slots = shared ? shared_slots.get() : nullptr;
  cuda::ServeMissesArgs serve = decision.Serve();
  serve.layer = state.get();
  serve.rows = rows.get();
  serve.records = records.get();
  serve.slots = places.get();
  DecisionOnDevice::MakeTiles(device_formats.get(), ready, late, kShares, &serve);
  serve.tiles.shared_slots = shared_slots.get();
  REQUIRE(cuda::LaunchRouteAndServe(route, serve, nullptr) == 0);

  CheckShares(ready);
  CheckShares(late);
  const std::vector<int32_t> count = decision.counts.Get(), first = decision.firsts.Get();
  const std::vector<cuda::ServedExpert> after = rows.Get();
  const std::vector<cuda::RecordCopy> copied = decision.copies.Get();
  std::map<const uint8_t*, std::pair<int, bool>> expected;  // expert, late
  for (int e = 0; e < c.experts; ++e) {
    if (count[e] == 0) continue;
    const bool came = after[e].slot >= 0 && layer.rows[e].slot < 0;
    const uint8_t* const at =
        after[e].slot >= 0 ? Address(kSlot, after[e].slot) : layer.records[e].host;
    expected[at] = {e, came};
  }
  int moved = 0;
  for (const auto& [at, of] : expected) moved += of.second ? 1 : 0;
  CHECK(decision.num_copies.Get()[0] == moved);
  if (shared) expected[handle.record] = {c.experts, false};
  for (const bool is_late : {false, true}) {
    std::map<int, int> seen;
    int before = -1;
    for (const cuda::Tile& tile : (is_late ? late : ready).Tiles()) {
      const auto found = expected.find(tile.matrix[0].weights);
      REQUIRE(found != expected.end());
      const auto [e, comes] = found->second;
      CHECK(comes == is_late);
      CHECK(e >= before);  // in the order of experts
      before = e;
      const int32_t* slots = e == c.experts ? shared_slots.get() : decision.sorted.get() + first[e];
      CHECK(tile.slots == slots + seen[e]);
      CHECK(tile.count <= cuda::kTileTokens);
      seen[e] += tile.count;
      const int format = e == c.experts ? 0 : layer.records[e].format;
      CHECK(tile.matrix[0].packing == formats[format].gate.packing);
      CHECK(tile.matrix[1].packing == formats[format].down.packing);
    }
    size_t experts = 0;
    for (const auto& [at, of] : expected) {
      if (of.second != is_late) continue;
      ++experts;
      CHECK(seen[of.first] == (of.first == c.experts ? tokens : count[of.first]));
    }
    CHECK(seen.size() == experts);
  }
  for (int i = 0; i < moved; ++i) CHECK(expected.count(copied[i].to) == 1);
}

TEST_CASE("tiles of both waves") {
  for (const int tokens : {1, 2, 3, 8, 16, 17, 32}) {
    for (const bool shared : {false, true}) {
      Check({128, 8}, tokens, 64, shared);
      Check({128, 8}, tokens, 3, shared);
      Check({128, 8}, tokens, 128, shared);
      Check({60, 4}, tokens, 20, shared);
      Check({512, 10}, tokens, 200, shared);
      Check({8, 2}, tokens, 4, shared);
    }
  }
}

}  // namespace
}  // namespace moert::test
