// One launch that routes, groups and makes tiles of few tokens, against the launches it stands for.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "device_array.h"
#include "few_inputs.h"
#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/route/route.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

constexpr int kShares = 264;

/// The results of a call in device memory.
struct Made {
  Made(int tokens, int top_k, int experts)
      : pairs(tokens * top_k),
        max_tiles(static_cast<int>(cuda::MaxTiles(tokens, top_k, experts))),
        ids(pairs),
        sorted(pairs),
        firsts(experts),
        counts(experts),
        chunks(cuda::GroupChunks(pairs) * experts),
        shared_slots(tokens),
        ready(max_tiles),
        ticket(2),
        weights(pairs),
        tally(std::vector<cuda::SelectionTally>(experts + 1)),
        tiles(max_tiles),
        starts{DeviceArray<cuda::Position>(kShares + 1), DeviceArray<cuda::Position>(kShares + 1)} {
  }

  cuda::SlotGroups groups() const {
    return {sorted.get(), firsts.get(), counts.get(), chunks.get()};
  }
  cuda::TileTable table() const {
    return {tiles.get(), {starts[0].get(), starts[1].get()}, ready.get(), ticket.get()};
  }

  const int pairs, max_tiles;
  DeviceArray<int32_t> ids, sorted, firsts, counts, chunks, shared_slots, ready, ticket;
  DeviceArray<float> weights;
  DeviceArray<cuda::SelectionTally> tally;
  DeviceArray<cuda::Tile> tiles;
  DeviceArray<cuda::Position> starts[2];
};

/// The slots of each tile, and what is to be multiplied.
std::vector<std::vector<int64_t>> TilesOf(const Made& made) {
  const auto starts = made.starts[0].Get();
  const auto tiles = made.tiles.Get();
  std::vector<int32_t> sorted = made.sorted.Get();
  std::vector<std::vector<int64_t>> all;
  for (int i = 0; i < starts.back().tile; ++i) {
    const cuda::Tile& tile = tiles[i];
    std::vector<int64_t> of = {reinterpret_cast<int64_t>(tile.matrix[0].weights),
                               reinterpret_cast<int64_t>(tile.matrix[1].weights),
                               tile.matrix[0].items,
                               tile.matrix[1].items,
                               static_cast<int64_t>(tile.matrix[1].packing),
                               tile.count};
    const auto at = tile.slots - made.sorted.get();
    const bool own = at >= 0 && at < made.pairs;
    of.push_back(own ? at : tile.slots - made.shared_slots.get());
    for (int s = 0; own && s < tile.count; ++s) of.push_back(sorted[at + s]);
    all.push_back(of);
  }
  return all;
}

std::vector<int32_t> StartsOf(const Made& made, int product) {
  std::vector<int32_t> all;
  for (const cuda::Position& p : made.starts[product].Get()) {
    all.push_back(p.tile);
    all.push_back(p.item);
  }
  return all;
}

void CheckSame(const Made& got, const Made& want) {
  CHECK(got.ids.Get() == want.ids.Get());
  CHECK(got.weights.Get() == want.weights.Get());
  CHECK(got.counts.Get() == want.counts.Get());
  CHECK(got.firsts.Get() == want.firsts.Get());
  const auto counts = want.counts.Get();
  int placed = 0;
  for (const int32_t c : counts) placed += c;
  const auto a = got.sorted.Get(), b = want.sorted.Get();
  CHECK(std::equal(a.begin(), a.begin() + placed, b.begin()));
  const auto tiles = TilesOf(want);
  CHECK(TilesOf(got) == tiles);
  for (int p = 0; p < 2; ++p) {
    const auto starts = StartsOf(want, p);
    CHECK(StartsOf(got, p) == starts);
    // Shares follow one another, from the first item to the last.
    CHECK((starts[0] == 0 && starts[1] == 0));
    CHECK((starts[starts.size() - 2] == static_cast<int>(tiles.size()) && starts.back() == 0));
    for (size_t i = 2; i < starts.size(); i += 2) {
      CHECK(std::make_pair(starts[i - 2], starts[i - 1]) <=
            std::make_pair(starts[i], starts[i + 1]));
      if (starts[i] < static_cast<int>(tiles.size()))
        CHECK(starts[i + 1] < tiles[starts[i]][2 + p]);
    }
  }
  const auto ready = got.ready.Get(), ticket = got.ticket.Get();
  CHECK(std::all_of(ready.begin(), ready.begin() + static_cast<int64_t>(tiles.size()),
                    [](int32_t r) { return r == 0; }));
  CHECK(ticket == std::vector<int32_t>{0, 0});
  CheckTallies(got.tally, want.tally);
}

struct Case : Choice {
  bool shared = false;
  bool given = false;
};

void Check(const Case& c, int tokens) {
  INFO(c.experts << " experts, top " << c.top_k << ", " << tokens << " tokens, given " << c.given
                 << ", shared " << c.shared);
  std::mt19937 rng(c.experts + tokens);
  const cuda::DeviceRouting routing = c.Routing();
  const std::vector<float> logits = RandomFloats(static_cast<size_t>(tokens) * c.experts, &rng);
  // Two formats; an expert in five is absent, one in seven is not in the wave.
  const std::vector<cuda::DeviceFormat> formats = {
      {MatrixOf(cuda::Packing::kW4, 768, 2048), MatrixOf(cuda::Packing::kW4, 768, 2048),
       MatrixOf(cuda::Packing::kW4, 2048, 768)},
      {MatrixOf(cuda::Packing::kBf16, 768, 2048), MatrixOf(cuda::Packing::kBf16, 768, 2048),
       MatrixOf(cuda::Packing::kW8, 2048, 768)}};
  std::vector<cuda::ExpertHandle> handles(c.experts + 1);
  cuda::MakeTilesArgs tiles;
  for (int e = 0; e <= c.experts; ++e) {
    const bool there = e == c.experts ? c.shared : rng() % 5 != 0;
    if (there) handles[e].record = reinterpret_cast<const uint8_t*>(intptr_t{4096} * (e + 1));
    handles[e].format = static_cast<int32_t>(rng() % 2);
    if (e == c.experts || rng() % 7 != 0) tiles.wave.Add(e);
  }
  const DeviceArray<cuda::DeviceFormat> device_formats(formats);
  const DeviceArray<cuda::ExpertHandle> device_handles(handles);
  tiles.formats = device_formats.get();
  tiles.handles = device_handles.get();
  tiles.experts = c.experts;
  tiles.tokens = tokens;
  tiles.shares = kShares;

  const Made want(tokens, c.top_k, c.experts), got(tokens, c.top_k, c.experts);
  const DeviceArray<float> scores(logits), few_scores(logits);
  cuda::RouteFewArgs args;
  args.routing = routing;
  args.tokens = tokens;
  args.scores = few_scores.get();
  args.ids = got.ids.get();
  args.weights = got.weights.get();
  args.groups = got.groups();
  args.tally = got.tally.get();
  args.shared_slots = c.shared ? got.shared_slots.get() : nullptr;
  args.makes_tiles = 1;
  args.tiles = tiles;
  args.tiles.table = got.table();
  args.tiles.groups = got.groups();
  args.tiles.shared_slots = got.shared_slots.get();
  if (c.given) {
    std::vector<int32_t> ids(want.pairs);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % (c.experts + 2)) - 1;
    const DeviceArray<int32_t> given(ids), used(want.pairs);
    const DeviceArray<float> weights(RandomFloats(ids.size(), &rng));
    for (int32_t& id : ids) id = id < c.experts ? id : -1;
    const DeviceArray<int32_t> adopted(ids);
    REQUIRE(cudaMemcpy(want.ids.get(), adopted.get(), ids.size() * 4, cudaMemcpyDeviceToDevice) ==
            cudaSuccess);
    REQUIRE(cudaMemcpy(want.weights.get(), weights.get(), ids.size() * 4,
                       cudaMemcpyDeviceToDevice) == cudaSuccess);
    args.given_ids = given.get();
    args.given_weights = weights.get();
    args.used_ids = used.get();
    REQUIRE(cuda::LaunchRouteFew(args, nullptr) == 0);
    CHECK(used.Get() == ids);
  } else {
    REQUIRE(cuda::LaunchTopK(routing, tokens, scores.get(), want.ids.get(), want.weights.get(),
                             nullptr) == 0);
    REQUIRE(cuda::LaunchRouteFew(args, nullptr) == 0);
    CHECK(few_scores.Get() == scores.Get());
  }
  REQUIRE(cuda::LaunchGroup(want.ids.get(), want.pairs, c.experts, want.groups(), nullptr,
                            want.weights.get(), want.tally.get()) == 0);
  REQUIRE(cuda::LaunchIota(want.shared_slots.get(), want.pairs, tokens, nullptr) == 0);
  tiles.table = want.table();
  tiles.groups = want.groups();
  tiles.shared_slots = want.shared_slots.get();
  REQUIRE(cuda::LaunchMakeTiles(tiles, nullptr) == 0);
  CheckSame(got, want);
  if (c.shared) CHECK(got.shared_slots.Get() == want.shared_slots.Get());
}

void CheckLayers(int tokens) {
  Check({{8, 2}}, tokens);
  Check({{60, 4}, true}, tokens);
  Check({{128, 8}}, tokens);
  Check({{128, 8}, false, true}, tokens);
  Check({{160, 6, RoutingKind::kSoftmaxTopK, 8, 3}, true}, tokens);
  Check({{256, 8, RoutingKind::kSigmoidGrouped, 8, 4}, true, true}, tokens);
  Check({{512, 10}, true}, tokens);
  Check({{512, 32, RoutingKind::kTopKSoftmax}}, tokens);
  Check({{16, 2, RoutingKind::kSparseMixer}}, tokens);
  Check({{1, 1}}, tokens);
}

TEST_CASE("one token and eight") {
  for (const int tokens : {1, 8}) CheckLayers(tokens);
}

TEST_CASE("few tokens: one launch does what four do") {
  for (const int tokens : {2, 3, 4, 5, 6, 7, 9, 16, 17, 31, 32}) CheckLayers(tokens);
}

TEST_CASE("more than few tokens are refused") {
  cuda::RouteFewArgs args;
  args.tokens = cuda::kFewTokens + 1;
  args.routing.num_experts = 8;
  CHECK(cuda::LaunchRouteFew(args, nullptr) != 0);
}

}  // namespace
}  // namespace moert::test
