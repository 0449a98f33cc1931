// One launch that chooses experts and multiplies, against the launches it stands for: the same
// bits.
#include "kernels/cuda/few/few_products.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "device_array.h"
#include "few_inputs.h"
#include "kernels/cuda/few/group_gemm.h"
#include "kernels/cuda/route/route.h"
#include "moert/tensor.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

struct Case : Choice {
  int hidden, inner;
  bool shared = false;
  int formats = 2;
};

/// A matrix at `*at`, behind which the next may begin.
cuda::DeviceMatrix Matrix(cuda::Packing packing, int rows, int k, int64_t* at) {
  cuda::DeviceMatrix m = MatrixOf(packing, rows, k);
  m.group_k16s = packing == cuda::Packing::kW4 ? 8 : packing == cuda::Packing::kW2 ? 4 : 0;
  m.zero_point = packing == cuda::Packing::kW4 ? 8 : packing == cuda::Packing::kW2 ? 2 : 0;
  m.weight_offset = *at;
  *at += int64_t{m.row_blocks} * m.k64s * cuda::K64Bytes(packing);
  m.scale_offset = m.zero_offset = *at;
  if (m.group_k16s > 0) *at += int64_t{m.row_blocks} * (m.k64s * 4 / m.group_k16s + 1) * 32;
  *at = (*at + 255) / 256 * 256;
  return m;
}

/// Formats of records, those beyond the known ones among them; the bytes of the largest.
std::vector<cuda::DeviceFormat> Formats(const Case& c, int64_t* bytes) {
  constexpr cuda::Packing kPackings[] = {cuda::Packing::kW4, cuda::Packing::kBf16,
                                         cuda::Packing::kW2};
  std::vector<cuda::DeviceFormat> formats;
  *bytes = 0;
  for (int i = 0; i < c.formats; ++i) {
    const cuda::Packing gate = kPackings[i % 3], down = kPackings[(i / 3 + i) % 3];
    int64_t at = 0;
    cuda::DeviceFormat f;
    f.gate = Matrix(gate, c.inner, c.hidden, &at);
    f.up = Matrix(gate, c.inner, c.hidden, &at);
    f.down = Matrix(down, c.hidden, c.inner, &at);
    formats.push_back(f);
    *bytes = std::max(*bytes, at);
  }
  return formats;
}

/// bf16 numbers: as good as weights and scales of any packing.
std::vector<uint16_t> RandomBf16(int64_t count, std::mt19937* rng) {
  std::vector<uint16_t> all(static_cast<size_t>(count));
  for (uint16_t& v : all) {
    const float f = static_cast<float>((*rng)() % 2001) / 1000.0f - 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    v = static_cast<uint16_t>(bits >> 16);
  }
  return all;
}

/// The inputs and results of a call.
struct Call {
  Call(const Case& c, int tokens, int shares)
      : pairs(tokens * c.top_k),
        tiles(static_cast<int>(cuda::MaxTiles(tokens, c.top_k, c.experts))),
        x_stride(cuda::OperandBytes(c.hidden)),
        h_stride(cuda::OperandBytes(c.inner)),
        logits(tokens * c.experts),
        scores(tokens * c.experts),
        weights(pairs),
        out(std::vector<float>(static_cast<size_t>(pairs + tokens) * c.hidden, -7.0f)),
        ids(pairs),
        sorted(pairs),
        firsts(c.experts),
        counts(c.experts),
        chunks(cuda::GroupChunks(pairs) * c.experts),
        shared_slots(tokens),
        ready(std::vector<int32_t>(tiles, 99)),
        ticket(std::vector<int32_t>(2, 99)),
        packed(tokens * x_stride),
        h(std::vector<uint8_t>(static_cast<size_t>((pairs + tokens) * h_stride), 0)),
        tally(std::vector<cuda::SelectionTally>(c.experts + 1)),
        made(tiles),
        starts{DeviceArray<cuda::Position>(shares + 1), DeviceArray<cuda::Position>(shares + 1)} {}

  cuda::GroupGemmArgs Gemm(const Case& c, int shares) {
    cuda::GroupGemmArgs args;
    args.table = {made.get(), {starts[0].get(), starts[1].get()}, ready.get(), ticket.get()};
    args.x[0] = packed.get();
    args.h = h.get();
    args.out = out.get();
    args.x_stride = x_stride;
    args.h_stride = h_stride;
    args.out_stride = c.hidden;
    args.pairs = pairs;
    args.top_k = c.top_k;
    args.hidden = c.hidden;
    args.shares = shares;
    return args;
  }

  const int pairs, tiles;
  const int64_t x_stride, h_stride;
  DeviceArray<float> logits, scores, weights, out;
  DeviceArray<int32_t> ids, sorted, firsts, counts, chunks, shared_slots, ready, ticket;
  DeviceArray<uint8_t> packed, h;
  DeviceArray<cuda::SelectionTally> tally;
  DeviceArray<cuda::Tile> made;
  DeviceArray<cuda::Position> starts[2];
};

/// A layer in device memory.
struct Layer {
  Layer(const Case& c, int tokens, std::mt19937* rng)
      : host_formats(Formats(c, &record_bytes)),
        formats(host_formats),
        gate(RandomFloats(static_cast<size_t>(c.experts) * c.hidden, rng)),
        x(RandomFloats(static_cast<size_t>(tokens) * c.hidden, rng)),
        records(RandomBf16((c.experts + 1) * record_bytes / 2, rng)),
        handles(Handles(c, rng)) {}

  std::vector<cuda::ExpertHandle> Handles(const Case& c, std::mt19937* rng) const {
    std::vector<cuda::ExpertHandle> all(c.experts + 1);
    for (int e = 0; e <= c.experts; ++e) {
      if (e == c.experts ? !c.shared : (*rng)() % 9 == 0) continue;  // absent
      all[e].record = reinterpret_cast<const uint8_t*>(records.get()) + e * record_bytes;
      all[e].format = static_cast<int32_t>((*rng)() % c.formats);
    }
    return all;
  }

  int64_t record_bytes;
  const std::vector<cuda::DeviceFormat> host_formats;
  const DeviceArray<cuda::DeviceFormat> formats;
  const DeviceArray<float> gate, x;
  const DeviceArray<uint16_t> records;
  const DeviceArray<cuda::ExpertHandle> handles;
};

void RunApart(const Case& c, const Layer& layer, const cuda::DeviceRouting& routing,
              const cuda::DeviceRows& x, int shares, Call* call) {
  REQUIRE(cuda::LaunchGateLogits(x, layer.gate.get(), c.experts, call->scores.get(), nullptr,
                                 call->packed.get(), call->x_stride) == 0);
  cuda::RouteFewArgs args;
  args.routing = routing;
  args.tokens = x.rows;
  args.scores = call->scores.get();
  args.ids = call->ids.get();
  args.weights = call->weights.get();
  args.groups = {call->sorted.get(), call->firsts.get(), call->counts.get(), call->chunks.get()};
  args.tally = call->tally.get();
  args.shared_slots = c.shared ? call->shared_slots.get() : nullptr;
  args.makes_tiles = 1;
  const cuda::GroupGemmArgs gemm = call->Gemm(c, shares);
  args.tiles.table = gemm.table;
  args.tiles.formats = layer.formats.get();
  args.tiles.handles = layer.handles.get();
  args.tiles.groups = args.groups;
  args.tiles.shared_slots = call->shared_slots.get();
  args.tiles.experts = c.experts;
  args.tiles.tokens = x.rows;
  args.tiles.shares = shares;
  for (int e = 0; e < c.experts + (c.shared ? 1 : 0); ++e) args.tiles.wave.Add(e);
  REQUIRE(cuda::LaunchRouteFew(args, nullptr) == 0);
  REQUIRE(cuda::LaunchProducts(gemm, nullptr) == 0);
}

void RunTogether(const Case& c, const Layer& layer, const cuda::DeviceRouting& routing,
                 const cuda::DeviceRows& x, int shares, Call* call) {
  const cuda::GateZeros zeros{
      call->ready.get(), cuda::FewTiles(x.rows, c.top_k, c.experts, c.shared), call->ticket.get()};
  REQUIRE(cuda::LaunchGateLogits(x, layer.gate.get(), c.experts, call->logits.get(), nullptr,
                                 call->packed.get(), call->x_stride, {}, zeros) == 0);
  cuda::FewProductsArgs args;
  args.routing = routing;
  args.tokens = x.rows;
  args.logits = call->logits.get();
  args.scores = call->scores.get();
  args.ids = call->ids.get();
  args.weights = call->weights.get();
  args.tally = call->tally.get();
  args.formats = layer.formats.get();
  args.num_formats = c.formats;
  args.shared = c.shared ? 1 : 0;
  args.handles = layer.handles.get();
  args.gemm = call->Gemm(c, shares);
  REQUIRE(cuda::LaunchFewProducts(args, nullptr) == 0);
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void Check(const Case& c, int tokens) {
  INFO(c.experts << " experts, top " << c.top_k << ", " << tokens << " tokens, shared " << c.shared
                 << ", formats " << c.formats);
  std::mt19937 rng(c.experts * 100 + tokens);
  const cuda::DeviceRouting routing = c.Routing();
  const Layer layer(c, tokens, &rng);
  cuda::DeviceRows x;
  x.data = layer.x.get();
  x.dtype = static_cast<int32_t>(DType::kF32);
  x.rows = tokens;
  x.cols = c.hidden;
  x.stride = c.hidden;
  for (const int shares : {cuda::GroupGemmShares(), 7}) {
    Call want(c, tokens, shares), got(c, tokens, shares);
    for (int again = 0; again < 2; ++again) {
      RunApart(c, layer, routing, x, shares, &want);
      RunTogether(c, layer, routing, x, shares, &got);
    }
    CHECK(got.ids.Get() == want.ids.Get());
    CHECK(SameBits(got.weights.Get(), want.weights.Get()));
    CHECK(SameBits(got.scores.Get(), want.scores.Get()));
    CHECK(SameBits(got.out.Get(), want.out.Get()));
    CheckTallies(got.tally, want.tally);
  }
}

TEST_CASE("one launch that chooses and multiplies") {
  for (const int tokens : {1, 2, 3, 5, 8}) {
    Check({{8, 2}, 256, 192}, tokens);
    Check({{60, 4}, 128, 320, true, 3}, tokens);
    Check({{128, 8}, 2048, 768, false, 1}, tokens);
    Check({{160, 6, RoutingKind::kSoftmaxTopK, 8, 3}, 512, 64, true, 6}, tokens);
    Check({{256, 8, RoutingKind::kSigmoidGrouped, 8, 4}, 384, 128, true, 9}, tokens);
    Check({{512, 10}, 1024, 128, true}, tokens);
    Check({{16, 2, RoutingKind::kSparseMixer}, 192, 448, false, 5}, tokens);
    Check({{1, 1}, 64, 64}, tokens);
  }
  Check({{512, 32, RoutingKind::kTopKSoftmax}, 128, 64, false, 4}, 2);
}

TEST_CASE("calls that the launch does not take are refused") {
  cuda::FewProductsArgs args;
  args.routing.num_experts = 8;
  args.tokens = cuda::kChoosingTokens + 1;
  CHECK(cuda::LaunchFewProducts(args, nullptr) != 0);
  args.tokens = 8;
  args.routing.top_k = 11;
  CHECK(cuda::LaunchFewProducts(args, nullptr) != 0);
}

}  // namespace
}  // namespace moert::test
