// Whole layers of opaque experts in memory of the host's.
#include <vector>

#include "moert/engine.h"
#include "support/catch.h"
#include "support/opaque_fixture.h"

namespace moert {
namespace {

using test::OpaqueModel;

std::unique_ptr<Engine> Open(const OpaqueModel& model) {
  auto source = MakeOpaqueSource("toy", model.spec, model.ByCallback());
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
  const auto engine = Open(model);
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

}  // namespace
}  // namespace moert
