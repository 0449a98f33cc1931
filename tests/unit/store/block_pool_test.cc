#include "store/block_pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
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

/// Makes pools of RAM, of nothing, of a host's allocator.
std::vector<MakePool> Kinds(Malloc* allocator) {
  return {[](const BlockSizes& sizes, int64_t limit, BudgetTracker* budget) {
            return MakeRamBlockPool(sizes, limit, budget);
          },
          MakeCountingBlockPool,
          [allocator](const BlockSizes& sizes, int64_t limit, BudgetTracker* budget) {
            return MakeHostBlockPool(allocator, sizes, limit, budget);
          }};
}

TEST_CASE("blocks each of its own size: what they need and no more") {
  Malloc allocator;
  const std::vector<MakePool> kinds = Kinds(&allocator);
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

TEST_CASE("memory moves between classes of blocks, within the bytes that are allowed") {
  Malloc allocator;
  const std::vector<MakePool> kinds = Kinds(&allocator);
  // Experts 0, 2 and 4 take two pages each, 1 and 3 three.
  const BlockSizes sizes({{2 * kPage, 3}, {3 * kPage, 2}}, {0, 1, 0, 1, 0});
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    INFO("kind " << kind);
    BudgetTracker budget(7 * kPage);
    {
      auto pool = kinds[kind](sizes, 3, &budget);
      REQUIRE_OK(pool.status());
      BlockPool& p = **pool;
      p.SetByteLimit(7 * kPage);
      const int32_t a = p.TakeFor(0), b = p.TakeFor(2), c = p.TakeFor(3);
      REQUIRE((a >= 0 && b >= 0 && c >= 0));
      CHECK(p.bytes(a) == 2 * kPage);
      CHECK(p.bytes(c) == 3 * kPage);
      CHECK(p.held_bytes() == 7 * kPage);
      CHECK(p.TakeFor(4) == -1);
      if (kind != 1) {
        std::fill_n(p.Address(b), p.bytes(b), std::byte{2});
        std::fill_n(p.Address(c), p.bytes(c), std::byte{3});
      }
      // Two pages are not three.
      p.Give(a);
      CHECK(p.TakeFor(1) == -1);
      CHECK(p.held_bytes() <= 7 * kPage);
      p.Give(c);
      const int32_t d = p.TakeFor(1);  // what was given back, warm
      REQUIRE(d >= 0);
      if (kind != 1) {
        std::fill_n(p.Address(d), p.bytes(d), std::byte{4});
        CHECK(p.Address(b)[0] == std::byte{2});
        CHECK(p.Address(b)[p.bytes(b) - 1] == std::byte{2});
      }
      CHECK(p.TakeFor(4) >= 0);
      CHECK(budget.used() == 7 * kPage);
      CHECK(p.Over(3, 6 * kPage));
      CHECK_FALSE(p.Over(0, 7 * kPage));
      // A class lies at one base with one stride, where memory can.
      const BlockRegion region = p.Region(1);
      CHECK((kind == 0) == (region.base != nullptr));
      if (kind == 0) {
        CHECK(region.stride == 3 * kPage);
        CHECK(region.blocks == 2);
        CHECK(p.Region(3).base == region.base);
        CHECK((p.Address(d) - region.base) % region.stride == 0);
      }
      p.Give(d);
      p.Give(b);
      p.SetByteLimit(2 * kPage);
      CHECK(p.held_bytes() == 2 * kPage);
      CHECK(budget.used() == 2 * kPage);
    }
    CHECK(budget.used() == 0);
  }
  CHECK(allocator.held == 0);
  BudgetTracker budget(kPage);
  CHECK_FALSE(MakeRamBlockPool(BlockSizes({{kPage, 0}}, {}), 1, &budget).ok());
  CHECK_FALSE(MakeRamBlockPool(BlockSizes({{INT64_MAX, 2}}, {0, 0}), 1, &budget).ok());
}

/// The mapping that holds `address`: a line of /proc/self/smaps, without its name.
std::string MappingLine(const std::byte* address, const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<unsigned long>(address);
      here = begin <= at && at < end;
    } else if (here && line.compare(0, name.size(), name) == 0) {
      return line.substr(name.size());
    }
  }
  return "";
}

TEST_CASE("classes of blocks: huge pages while there is room for all of them, and only then") {
  constexpr int64_t kBlock = 384 * kPage;
  const BlockSizes sizes({{kBlock, 4}, {kBlock, 4}}, {0, 0, 0, 0, 1, 1, 1, 1});
  BudgetTracker budget(8 * kBlock);
  auto pool = MakeRamBlockPool(sizes, 8, &budget);
  REQUIRE_OK(pool.status());
  BlockPool& p = **pool;
  if (MappingLine(p.Address(0), "VmFlags:").find(" nh") == std::string::npos) {
    SUCCEED("this kernel has no huge pages");
    return;
  }
  p.SetByteLimit(8 * kBlock - 1);
  CHECK(MappingLine(p.Address(0), "VmFlags:").find(" nh") != std::string::npos);
  p.SetByteLimit(8 * kBlock);
  CHECK(MappingLine(p.Address(0), "VmFlags:").find(" hg") != std::string::npos);
  std::vector<int32_t> blocks;
  for (int64_t i = 0; i < 8; ++i) {
    blocks.push_back(p.TakeFor(i));
    REQUIRE(blocks.back() >= 0);
    std::fill_n(p.Address(blocks.back()), kBlock, std::byte{1});
  }
  // Memory still goes back, and no huge page brings it again.
  for (const int32_t block : blocks) p.Give(block);
  p.SetByteLimit(3 * kBlock);
  CHECK(p.held_bytes() == 3 * kBlock);
  CHECK(MappingLine(p.Address(0), "VmFlags:").find(" nh") != std::string::npos);
  CHECK(std::stoll(MappingLine(p.Address(0), "Rss:")) * 1024 == 3 * kBlock);
}

TEST_CASE("where address space is short, a pool reserves what its limit needs") {
  constexpr int64_t kBlock = int64_t{1} << 40;
  BudgetTracker budget(100 * kBlock);
  const auto pool = MakeRamBlockPool(BlockSizes(kBlock, 1024), 3, &budget);  // of 2^47 addresses
  REQUIRE_OK(pool.status());
  for (int i = 0; i < 3; ++i) {
    const int32_t block = (*pool)->Take();
    REQUIRE(block >= 0);
    std::fill_n((*pool)->Address(block), kPage, std::byte{1});
  }
  CHECK((*pool)->Take() == -1);
  (*pool)->SetLimit(4);
  CHECK((*pool)->Take() == -1);
  CHECK((*pool)->held_bytes() == 3 * kBlock);
  CHECK(!MakeRamBlockPool(BlockSizes(kBlock, 1024), 1024, &budget).ok());
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
