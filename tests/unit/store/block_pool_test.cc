#include "store/block_pool.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "moert/allocator.h"
#include "moert/scheme.h"
#include "support/catch.h"

namespace moert {
namespace {

constexpr int64_t kPage = kRecordAlignment;

class Malloc final : public HostAllocator {
 public:
  void* Allocate(int64_t bytes, int64_t alignment) override {
    held += bytes;
    return std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(bytes));
  }
  void Free(void* memory, int64_t bytes) override {
    held -= bytes;
    std::free(memory);
  }
  int64_t held = 0;
};

using MakePool = std::function<absl::StatusOr<std::unique_ptr<BlockPool>>(
    const BlockSizes& sizes, int64_t limit, BudgetTracker* budget)>;

TEST_CASE("blocks each of its own size: what they need and no more") {
  Malloc allocator;
  const std::vector<MakePool> kinds = {
      MakeRamBlockPool, MakeCountingBlockPool,
      [&](const BlockSizes& sizes, int64_t limit, BudgetTracker* budget) {
        return MakeHostBlockPool(&allocator, sizes, limit, budget);
      }};
  const std::vector<int64_t> bytes = {3 * kPage, kPage, 2 * kPage, 5 * kPage};
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const bool counting = kind == 1;
    INFO("kind " << kind);
    BudgetTracker budget(11 * kPage);
    {
      auto pool = kinds[kind](BlockSizes(bytes), 4, &budget);
      REQUIRE_OK(pool.status());
      BlockPool& p = **pool;
      // All of them fit into exactly the sum.
      for (int32_t i = 0; i < 4; ++i) {
        CHECK(p.TakeFor(i) == i);
        CHECK(p.bytes(i) == bytes[static_cast<size_t>(i)]);
        if (counting) continue;
        std::fill_n(p.Address(i), p.bytes(i), static_cast<std::byte>(i + 1));
      }
      CHECK(budget.used() == 11 * kPage);
      CHECK(p.held_bytes() == 11 * kPage);
      CHECK(p.TakeFor(0) == -1);
      for (int32_t i = 0; i < 4 && !counting; ++i) {
        CHECK(p.Address(i)[0] == static_cast<std::byte>(i + 1));
        CHECK(p.Address(i)[p.bytes(i) - 1] == static_cast<std::byte>(i + 1));
      }
      // Given back in any order, each finds its own again.
      p.Give(1);
      p.Give(3);
      p.Give(0);
      CHECK(p.TakeFor(3) == 3);
      CHECK(p.TakeFor(0) == 0);
      CHECK(p.TakeFor(1) == 1);
      CHECK(budget.used() == 11 * kPage);
      for (int32_t i = 0; i < 4; ++i) p.Give(i);
      p.SetLimit(0);
      CHECK(p.held_bytes() == 0);
      CHECK(budget.used() == 0);
    }
    CHECK(budget.used() == 0);
    // One page less and the last has no room.
    BudgetTracker tight(10 * kPage);
    auto pool = kinds[kind](BlockSizes(bytes), 4, &tight);
    REQUIRE_OK(pool.status());
    for (int32_t i = 0; i < 3; ++i) CHECK((*pool)->TakeFor(i) == i);
    CHECK((*pool)->TakeFor(3) == -1);
    CHECK(tight.used() == 6 * kPage);
  }
  CHECK(allocator.held == 0);
}

TEST_CASE("sizes that are none are refused") {
  BudgetTracker budget(kPage);
  for (const std::vector<int64_t>& bytes : std::vector<std::vector<int64_t>>{
           {}, {kPage, 0}, {kPage, -kPage}, {INT64_MAX, kPage}, {INT64_MAX / 2, INT64_MAX, 1}}) {
    CHECK_FALSE(MakeRamBlockPool(BlockSizes(bytes), 1, &budget).ok());
  }
  for (const auto& [bytes, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {kPage, 0}, {kPage, -1}, {kPage, int64_t{1} << 31}, {INT64_MAX, 2}}) {
    CHECK_FALSE(MakeRamBlockPool({bytes, count}, 1, &budget).ok());
  }
}

}  // namespace
}  // namespace moert
