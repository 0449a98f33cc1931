// Which records count as held by the host: those that the source has pinned, others within a
// budget.
#include <set>

#include "base/checked_math.h"
#include "exec/backend.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// Says of some records that they lie in pinned memory.
class PartlyPinned : public SyntheticSource {
 public:
  using SyntheticSource::SyntheticSource;
  const std::byte* PinnedRecord(int layer, int, int version) const override {
    return pinned.contains({layer, version}) ? &place_ : nullptr;
  }
  std::set<std::pair<int, int>> pinned;  // layers and versions

 private:
  std::byte place_{};
};

TEST_CASE("all records of all versions must be pinned, or within the budget together") {
  SyntheticShape shape{3, 12, 3, 64, 48, 32};
  shape.low_version = true;
  PartlyPinned source(shape);
  const auto bytes = [&](int version) {
    return 12 * RoundUp(source.layout(0, 0, version).bytes, kRecordAlignment);
  };
  const std::vector<int> high = {0}, both = {0, 1};
  const int64_t all = 3 * (bytes(0) + bytes(1));
  CHECK(HostHoldsAll(source, high, 3 * bytes(0)));
  CHECK(!HostHoldsAll(source, high, 3 * bytes(0) - 1));
  CHECK(HostHoldsAll(source, both, all));
  CHECK(!HostHoldsAll(source, both, 3 * bytes(0)));
  CHECK(!HostHoldsAll(source, both, -1));  // kept as they are read
  source.pinned = {{0, 0}, {1, 0}, {2, 0}};
  CHECK(HostHoldsAll(source, high, -1));
  CHECK(!HostHoldsAll(source, both, -1));
  CHECK(HostHoldsAll(source, both, 3 * bytes(1)));
  source.pinned.insert({{0, 1}, {1, 1}, {2, 1}});
  CHECK(HostHoldsAll(source, both, 0));
}

TEST_CASE("a budget that does not hold all leaves room for what calls name first") {
  PartlyPinned source(SyntheticShape{3, 12, 3, 64, 48, 32});
  const int64_t each = RoundUp(source.layout(0, 0, 0).bytes, kRecordAlignment);
  const auto kept = [&](int64_t budget) { return RecordsToKeep(source, 0, budget); };
  CHECK(kept(36 * each).size() == 36);
  CHECK(kept(100 * each).size() == 36);
  CHECK(kept(36 * each - 1).size() == 35);
  CHECK(kept(30 * each).size() == 24);
  CHECK(kept(27 * each).size() == 18);
  for (const int64_t few : {int64_t{-1}, int64_t{0}, 18 * each}) CHECK(kept(few).empty());
  std::vector<int> of_layer(3);
  for (const ExpertKey key : kept(27 * each)) {
    ++of_layer[static_cast<size_t>(key.layer)];
    CHECK(key.expert < 6);
  }
  CHECK(of_layer == std::vector<int>{6, 6, 6});
  source.pinned = {{1, 0}};
  CHECK(kept(24 * each).size() == 24);
  for (const ExpertKey key : kept(20 * each)) CHECK(key.layer != 1);
  CHECK(kept(20 * each).size() == 16);
}

TEST_CASE("what may be pinned is bounded, also where nobody said by what") {
  MemoryLimits machine;
  machine.available = 64 << 20;
  CHECK(PinnedLimit(-1, machine) == 56 << 20);
  CHECK(PinnedLimit(0, machine) == 0);
  CHECK(PinnedLimit(1 << 30, machine) == 1 << 30);
  machine.control_group = 16 << 20;
  machine.control_group_used = 8 << 20;
  CHECK(PinnedLimit(-1, machine) == 7 << 20);
  CHECK(PinnedLimit(-1, MemoryLimits()) == 0);  // unknown
}

}  // namespace
}  // namespace moert
