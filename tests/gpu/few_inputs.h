// Calls of few tokens, as tests of single kernels make them: matrices, routings, counts.
#ifndef MOERT_TESTS_GPU_FEW_INPUTS_H_
#define MOERT_TESTS_GPU_FEW_INPUTS_H_

#include <vector>

#include "device_array.h"
#include "exec/cuda/route/device_routing.h"
#include "kernels/cuda/cache/serve_misses.h"
#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/route/route.h"
#include "tests/support/catch.h"

namespace moert::test {

/// How a layer chooses experts.
struct Choice {
  int experts, top_k;
  RoutingKind kind = RoutingKind::kSoftmaxTopK;
  int groups = 1, top_groups = 1;

  cuda::DeviceRouting Routing() const {
    RoutingSpec spec;
    spec.kind = kind;
    spec.top_k = top_k;
    spec.num_groups = groups;
    spec.top_groups = top_groups;
    return cuda::MakeDeviceRouting(spec, experts, nullptr);
  }
};

/// Without its places in a record.
inline cuda::DeviceMatrix MatrixOf(cuda::Packing packing, int rows, int k) {
  cuda::DeviceMatrix m;
  m.packing = packing;
  m.row_blocks = (rows + 15) / 16;
  m.k64s = (k + 63) / 64;
  m.k = k;
  return m;
}

/// A table of tiles in device memory.
struct TilesOnDevice {
  TilesOnDevice(int max_tiles, int shares)
      : tiles(max_tiles),
        ready(std::vector<int32_t>(max_tiles, 7)),
        ticket(std::vector<int32_t>(2, 7)),
        starts{DeviceArray<cuda::Position>(shares + 1), DeviceArray<cuda::Position>(shares + 1)} {}
  cuda::TileTable get() const {
    return {tiles.get(), {starts[0].get(), starts[1].get()}, ready.get(), ticket.get()};
  }
  std::vector<cuda::Tile> Tiles() const {
    std::vector<cuda::Tile> all = tiles.Get();
    all.resize(static_cast<size_t>(starts[0].Get().back().tile));
    return all;
  }

  DeviceArray<cuda::Tile> tiles;
  DeviceArray<int32_t> ready, ticket;
  DeviceArray<cuda::Position> starts[2];
};

/// The results of a decision about a few tokens, in device memory; but for its layer.
struct DecisionOnDevice {
  DecisionOnDevice(int num_experts, int top_k, int num_tokens,
                   const cuda::ExpertHandle& shared_handle = {})
      : experts(num_experts),
        k(top_k),
        tokens(num_tokens),
        ids(num_tokens * top_k),
        sorted(num_tokens * top_k),
        firsts(num_experts),
        counts(num_experts),
        num_copies(1),
        weights(num_tokens * top_k),
        shared(std::vector<cuda::ExpertHandle>{shared_handle}),
        tally(std::vector<cuda::ServedTally>(1)),
        copies(num_experts) {}

  /// By `scores`, or by ids that are given.
  cuda::RouteFewArgs Route(const cuda::DeviceRouting& routing, float* scores) const {
    cuda::RouteFewArgs route;
    route.routing = routing;
    route.tokens = tokens;
    route.scores = scores;
    route.ids = ids.get();
    route.weights = weights.get();
    route.groups = {sorted.get(), firsts.get(), counts.get(), nullptr};
    return route;
  }
  /// Behind that; what it knows of its layer is left out.
  cuda::ServeMissesArgs Serve() const {
    cuda::ServeMissesArgs serve;
    serve.experts = experts;
    serve.counts = counts.get();
    serve.shared = shared.get();
    serve.tally = tally.get();
    serve.tokens = tokens;
    serve.top_k = k;
    serve.groups = {sorted.get(), firsts.get(), counts.get(), nullptr};
    serve.copies = copies.get();
    serve.num_copies = num_copies.get();
    return serve;
  }
  /// Its tiles too.
  static void MakeTiles(const cuda::DeviceFormat* formats, const TilesOnDevice& ready,
                        const TilesOnDevice& late, int shares, cuda::ServeMissesArgs* serve) {
    serve->makes_tiles = 1;
    serve->tiles.table = ready.get();
    serve->tiles.formats = formats;
    serve->tiles.groups = serve->groups;
    serve->tiles.experts = serve->experts;
    serve->tiles.tokens = serve->tokens;
    serve->tiles.shares = shares;
    serve->late_table = late.get();
  }

  const int experts, k, tokens;
  DeviceArray<int32_t> ids, sorted, firsts, counts, num_copies;
  DeviceArray<float> weights;
  DeviceArray<cuda::ExpertHandle> shared;
  DeviceArray<cuda::ServedTally> tally;
  DeviceArray<cuda::RecordCopy> copies;
};

/// The same counts; mass, which is added in any order, nearly.
inline void CheckTallies(const DeviceArray<cuda::SelectionTally>& got,
                         const DeviceArray<cuda::SelectionTally>& want) {
  const auto mine = got.Get(), theirs = want.Get();
  REQUIRE(mine.size() == theirs.size());
  for (size_t e = 0; e < mine.size(); ++e) {
    CHECK(mine[e].slots == theirs[e].slots);
    CHECK(mine[e].calls == theirs[e].calls);
    CHECK(mine[e].mass == Approx(theirs[e].mass).margin(1e-5));
  }
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_FEW_INPUTS_H_
