// Opaque experts of a layer beside the slots: copied to memory of the host's, and multiplied by the
// CPU.
#include <utility>
#include <vector>

#include "moert/engine.h"
#include "support/catch.h"
#include "support/opaque_fixture.h"

namespace moert {
namespace {

using test::OpaqueModel;

std::unique_ptr<Engine> Open(const OpaqueModel& model, OpaqueWeights weights) {
  auto source = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(source.status());
  EngineOptions options;
  options.threads = 1;
  options.budget = Budget::Fraction(0.3);
  auto engine = Engine::Create(*std::move(source), options);
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

TEST_CASE("a copy of a layer has all experts, and changes nothing") {
  const OpaqueModel model;
  const auto engine = Open(model, model.ByCallback());
  auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  const std::vector<int32_t> ids = {2, 7};  // those are in slots then
  FetchInput input;
  input.ids = ids;
  SlotView view;
  REQUIRE_OK(engine->Fetch(*step, 1, input, &view));
  const EngineStats before = engine->stats();
  for (int layer = 0; layer < OpaqueModel::kLayers; ++layer) {
    REQUIRE_OK(engine->CopyLayer(*step, layer, {}, nullptr, &view));
    REQUIRE(view.slots == OpaqueModel::kExperts);
    CHECK(view.parts[0].base == nullptr);
    std::vector<std::byte> to(static_cast<size_t>(view.slots * view.parts[0].stride));
    REQUIRE_OK(engine->CopyLayer(*step, layer, {}, to.data(), &view));
    for (int e = 0; e < OpaqueModel::kExperts; ++e) {
      CHECK(test::OverSlots(view, e, 0.5) == test::Expected(model, layer, e, 0.5));
    }
  }
  // Some of them: the others' places stay as they are.
  const std::vector<int32_t> some = {3, 7};
  std::vector<std::byte> to(static_cast<size_t>(view.slots * view.parts[0].stride), std::byte{9});
  REQUIRE_OK(engine->CopyLayer(*step, 1, some, to.data(), &view));
  for (int e = 0; e < OpaqueModel::kExperts; ++e) {
    const bool named = e == 3 || e == 7;
    CHECK((test::OverSlots(view, e, 0.5) == test::Expected(model, 1, e, 0.5)) == named);
    CHECK((view.parts[0].base[e * view.parts[0].stride] == std::byte{9}) == !named);
  }
  const std::vector<int32_t> beyond = {OpaqueModel::kExperts};
  CHECK(absl::IsInvalidArgument(engine->CopyLayer(*step, 1, beyond, to.data(), &view)));
  CHECK(engine->stats().loads == before.loads);
  CHECK(engine->stats().evictions == before.evictions);
  CHECK(
      absl::IsInvalidArgument(engine->CopyLayer(*step, OpaqueModel::kLayers, {}, nullptr, &view)));
  REQUIRE_OK(engine->EndStep(*step));
  CHECK(absl::IsFailedPrecondition(engine->CopyLayer(*step, 0, {}, nullptr, &view)));
}

/// A row of results is what the toy kernel makes of the first number of the row, and the row's
/// pair.
absl::Status Multiply(const OpaqueProduct& product) {
  int64_t pair = 0;
  for (const OpaqueProduct::Expert& expert : product.experts) {
    for (int64_t i = 0; i < expert.pairs; ++i, ++pair) {
      double x = product.x[product.row_of[static_cast<size_t>(pair)] * product.hidden];
      for (int p = 0; p < 3; ++p) {
        x = test::Toy(expert.parts[static_cast<size_t>(p)],
                      OpaqueModel::PartBytes(product.layer, p), x) *
            1e-4;
      }
      product.pool->Run(product.hidden, [&](int64_t c, int) {
        product.out[pair * product.hidden + c] = static_cast<float>(x) + static_cast<float>(c);
      });
    }
  }
  return absl::OkStatus();
}

TEST_CASE("the CPU multiplies experts that the host chooses, where they lie") {
  const OpaqueModel model;
  OpaqueWeights weights = model.InMemory();
  weights.product = Multiply;
  const auto engine = Open(model, std::move(weights));
  auto step = engine->BeginStep({Phase::kDecode, 1});
  REQUIRE_OK(step.status());
  const std::vector<int32_t> ids = {2, 7};  // those are in slots then
  FetchInput input;
  input.ids = ids;
  SlotView view;
  REQUIRE_OK(engine->Fetch(*step, 1, input, &view));
  const EngineStats before = engine->stats();
  constexpr int64_t kHidden = OpaqueModel::kHidden;
  std::vector<float> x(3 * kHidden), out(4 * kHidden);
  for (int64_t r = 0; r < 3; ++r)
    x[static_cast<size_t>(r * kHidden)] = 0.5f * static_cast<float>(r + 1);
  const std::vector<OpaqueProduct::Expert> experts = {{7, 2}, {4, 1}, {0, 1}};
  const std::vector<int32_t> row_of = {2, 0, 1, 1};
  OpaqueProduct product;
  product.hidden = kHidden;
  product.rows = 3;
  product.x = x.data();
  product.experts = experts;
  product.row_of = row_of;
  product.out = out.data();
  REQUIRE_OK(engine->MultiplyOnCpu(*step, 1, product));
  const int of[] = {7, 7, 4, 0};
  for (size_t p = 0; p < 4; ++p) {
    const double expected = test::Expected(model, 1, of[p], 0.5 * (row_of[p] + 1));
    CHECK(out[p * kHidden] == static_cast<float>(expected));
    CHECK(out[p * kHidden + 3] == static_cast<float>(expected) + 3);
  }
  CHECK(engine->stats().loads == before.loads);

  const auto refused = [&](auto change) {
    OpaqueProduct bad = product;
    change(&bad);
    return absl::IsInvalidArgument(engine->MultiplyOnCpu(*step, 1, bad));
  };
  const std::vector<int32_t> beyond = {2, 0, 1, 3}, few = {2, 0, 1};
  const std::vector<OpaqueProduct::Expert> unknown = {{7, 2}, {4, 1}, {OpaqueModel::kExperts, 1}};
  CHECK(refused([&](OpaqueProduct* p) { p->row_of = beyond; }));
  CHECK(refused([&](OpaqueProduct* p) { p->row_of = few; }));
  CHECK(refused([&](OpaqueProduct* p) { p->experts = unknown; }));
  CHECK(refused([&](OpaqueProduct* p) { p->hidden = 8; }));
  REQUIRE_OK(engine->EndStep(*step));
  CHECK(absl::IsFailedPrecondition(engine->MultiplyOnCpu(*step, 1, product)));
}

TEST_CASE(
    "records that lie in no RAM are read for the CPU; and there is no product but the host's") {
  const OpaqueModel model;
  const std::vector<OpaqueProduct::Expert> experts = {{3, 1}};
  const std::vector<int32_t> row_of = {0};
  std::vector<float> x(OpaqueModel::kHidden, 0.5f), out = x;
  OpaqueProduct product;
  product.hidden = OpaqueModel::kHidden;
  product.rows = 1;
  product.x = x.data();
  product.experts = experts;
  product.row_of = row_of;
  product.out = out.data();
  for (const bool has_product : {false, true}) {
    OpaqueWeights weights = model.ByCallback();
    if (has_product) weights.product = Multiply;
    const auto engine = Open(model, std::move(weights));
    auto step = engine->BeginStep({Phase::kDecode, 1});
    REQUIRE_OK(step.status());
    const absl::Status status = engine->MultiplyOnCpu(*step, 0, product);
    CHECK(absl::IsFailedPrecondition(status) == !has_product);
    if (!has_product) continue;
    REQUIRE_OK(status);
    CHECK(out[0] == static_cast<float>(test::Expected(model, 0, 3, 0.5)));
  }
}

}  // namespace
}  // namespace moert
