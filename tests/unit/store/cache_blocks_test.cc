// Sizes of blocks come from a host's numbers: those that cannot be counted are refused.
#include "store/cache_blocks.h"

#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/source/opaque_source.h"
#include "support/catch.h"

namespace moert {
namespace {

MoeModelSpec External(int layers, int experts) {
  MoeModelSpec model;
  for (int l = 0; l < layers; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = experts;
    layer.hidden = 16;
    layer.intermediate = 32;
    layer.routing.kind = RoutingKind::kExternal;
    layer.routing.top_k = 2;
    model.layers.push_back(layer);
  }
  return model;
}

absl::StatusOr<std::unique_ptr<ExpertSource>> Opaque(int layers, int experts,
                                                     const std::vector<OpaquePart>& parts) {
  OpaqueWeights weights;
  weights.layers.assign(static_cast<size_t>(layers), parts);
  weights.read = [](const OpaqueRead&) { return absl::OkStatus(); };
  return MakeOpaqueSource("host", External(layers, experts), std::move(weights));
}

std::vector<OpaquePart> Multiples(const std::vector<int64_t>& multiples) {
  std::vector<OpaquePart> parts;
  for (const int64_t multiple : multiples) {
    OpaquePart& part = parts.emplace_back();
    part.bytes = 100;
    part.stride_multiple = multiple;
  }
  return parts;
}

TEST_CASE("slots whose strides have a common multiple beyond all memory are refused") {
  CHECK(Opaque(1, 4, Multiples({144, 210, 176})).ok());
  const absl::Status refused =
      Opaque(1, 4, Multiples({4093, 4091, 4079, 4073, 4057, 4051, 4049, 4027})).status();
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK(refused.message().find("host layer 0: slots a multiple of every part's stride_multiple") ==
        0);
}

TEST_CASE("experts that together have more bytes than can be counted are refused") {
  OpaquePart part;
  part.bytes = int64_t{1} << 40;
  auto made = Opaque(16, 65536, std::vector<OpaquePart>(8, part));
  REQUIRE_OK(made.status());
  const std::shared_ptr<const ExpertSource> source = *std::move(made);
  EngineOptions options;
  options.strategy = "on-demand";
  ExpertStoreOptions store;
  store.budget_bytes = 1 << 20;
  for (const absl::Status& refused : {Engine::Create(source, options).status(),
                                      ExpertStore::Create(source, std::move(store)).status()}) {
    CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
    CHECK(refused.message().find("too many bytes to count") != std::string::npos);
  }
}

/// Up, gate and down of 2,048 x 768, in formats of ggml: blocks of 256 weights.
std::vector<OpaquePart> Quantized(const std::vector<int64_t>& block_bytes, bool on_device) {
  std::vector<OpaquePart> parts;
  for (const int64_t bytes : block_bytes) {
    OpaquePart& part = parts.emplace_back();
    part.bytes = 2048 * 768 / 256 * bytes;
    part.alignment = on_device ? 16 : 128;
    part.stride_multiple = on_device ? bytes : 1;
  }
  return parts;
}

TEST_CASE("a slot takes what its parts take") {
  constexpr int64_t kQ2 = 84, kQ3 = 110, kQ4 = 144, kQ5 = 176, kQ6 = 210, kIq4 = 136;
  const std::vector<std::vector<int64_t>> mixes = {
      {kQ2, kQ2, kQ3}, {kQ3, kQ3, kQ4}, {kQ4, kQ4, kQ6}, {kQ5, kQ5, kQ6}, {kIq4, kIq4, kQ5}};
  for (const std::vector<int64_t>& mix : mixes) {
    for (const BlockKind kind : {BlockKind::kClasses, BlockKind::kDevice}) {
      const std::vector<OpaquePart> parts = Quantized(mix, kind == BlockKind::kDevice);
      auto made = Opaque(2, 4, parts);
      REQUIRE_OK(made.status());
      const CacheBlocks blocks = MeasureCacheBlocks(**made, {0}, kind);
      int64_t bytes = 0;
      for (const OpaquePart& part : parts) {
        bytes += part.bytes;
        CHECK(blocks.largest % part.stride_multiple == 0);
        CHECK(blocks.largest % part.alignment == 0);
      }
      CHECK(blocks.largest >= bytes);
      CHECK(static_cast<double>(blocks.largest) < 1.01 * static_cast<double>(bytes));
      CHECK(blocks.all_bytes == 8 * blocks.largest);
    }
  }
}

TEST_CASE("slots of one format begin at pages of a device where that costs little") {
  auto made = Opaque(1, 4, Quantized({144, 144, 144}, true));
  REQUIRE_OK(made.status());
  CHECK(MeasureCacheBlocks(**made, {0}, BlockKind::kDevice).largest % 4096 == 0);
}

TEST_CASE("an alignment holds in every slot") {
  OpaquePart part;
  part.bytes = 100;
  part.alignment = 1024;
  auto made = Opaque(1, 4, {part});
  REQUIRE_OK(made.status());
  CHECK(MeasureCacheBlocks(**made, {0}, BlockKind::kDevice).largest == 1024);
}

}  // namespace
}  // namespace moert
