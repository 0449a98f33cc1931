// Sizes of blocks come from a host's numbers: those that cannot be counted are refused.
#include "moert/engine.h"
#include "moert/expert_store.h"
#include "moert/opaque_source.h"
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

}  // namespace
}  // namespace moert
