#include "store/block_pool.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {
namespace {

/// Blocks of one size, or each of its own size.
class PlainBlockPool final : public BlockPool {
 public:
  PlainBlockPool(std::unique_ptr<BlockMemory> memory, const BlockSizes& sizes, int64_t limit,
                 BudgetTracker* budget)
      : BlockPool(sizes, limit), memory_(std::move(memory)), budget_(budget) {
    fresh_.reserve(sizes.count());
    warm_.reserve(sizes.count());
    for (int64_t i = sizes.count(); i-- > 0;) fresh_.push_back(static_cast<int32_t>(i));
    // Streaming through 4 KiB pages costs a TLB miss each. Blocks are taken in order, so at most
    // one huge page reaches beyond the held blocks.
    memory_->MayFillUp(true);
  }
  ~PlainBlockPool() override { budget_->Release(held_bytes_); }

  int32_t Take() override {
    if (taken_ >= limit_ || (warm_.empty() && !Hold())) return -1;
    const int32_t block = warm_.back();
    warm_.pop_back();
    ++taken_;
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    warm_.push_back(block);
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override { return memory_->Address(block); }
  BlockRegion Region(int64_t index) const override {
    return memory_->contiguous() ? BlockPool::Region(index) : BlockRegion();
  }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override { return held_bytes_; }

 private:
  /// Makes a fresh block warm.
  bool Hold() {
    if (fresh_.empty() || !budget_->TryReserve(bytes(fresh_.back()))) return false;
    const int32_t block = fresh_.back();
    const bool held = memory_->Hold(block) != nullptr;
    refused_by_ = held ? absl::string_view() : kHostRefused;
    if (!held) {
      budget_->Release(bytes(block));
      return false;
    }
    held_bytes_ += bytes(block);
    fresh_.pop_back();
    warm_.push_back(block);
    return true;
  }

  /// Returns the memory of held blocks (taken and warm) beyond the limit to the system.
  void ReturnSurplus() {
    while (!warm_.empty() && taken_ + static_cast<int64_t>(warm_.size()) > limit_) {
      const int32_t block = warm_.back();
      warm_.pop_back();
      // With huge pages on, the kernel would fill the holes again, beyond the budget.
      if (!has_holes_) memory_->MayFillUp(false);
      has_holes_ = true;
      memory_->Drop(block);
      budget_->Release(bytes(block));
      held_bytes_ -= bytes(block);
      fresh_.push_back(block);
    }
  }

  const std::unique_ptr<BlockMemory> memory_;
  BudgetTracker* const budget_;
  int64_t held_bytes_ = 0;
  bool has_holes_ = false;      // memory was given back
  std::vector<int32_t> fresh_;  // free blocks without memory
  std::vector<int32_t> warm_;   // free blocks whose memory is still held
};

std::unique_ptr<BlockPool> PoolOver(std::unique_ptr<BlockMemory> memory, const BlockSizes& sizes,
                                    int64_t limit, BudgetTracker* budget) {
  if (sizes.classes() > 0) return MakeClassedBlockPool(std::move(memory), sizes, limit, budget);
  return std::make_unique<PlainBlockPool>(std::move(memory), sizes, limit, budget);
}

}  // namespace

BlockSizes::BlockSizes(absl::Span<const int64_t> bytes)
    : count_(static_cast<int64_t>(bytes.size())) {
  offsets_.push_back(0);
  for (const int64_t size : bytes) {
    int64_t end = 0;
    const bool good =
        size > 0 && offsets_.back() >= 0 && !__builtin_add_overflow(offsets_.back(), size, &end);
    offsets_.push_back(good ? end : -1);
  }
}

BlockSizes::BlockSizes(std::vector<BlockClass> classes, std::vector<int32_t> class_of)
    : count_(0), class_of_(std::move(class_of)) {
  int64_t offset = 0;
  for (const BlockClass& c : classes) {
    classes_.push_back({count_, c.bytes, offset});
    int64_t bytes = 0;
    overflow_ = overflow_ || c.bytes <= 0 || c.count <= 0 ||
                __builtin_mul_overflow(c.bytes, c.count, &bytes) ||
                __builtin_add_overflow(offset, bytes, &offset) ||
                __builtin_add_overflow(count_, c.count, &count_);
  }
}

int BlockSizes::ClassOf(int64_t block) const {
  const auto behind = std::upper_bound(classes_.begin(), classes_.end(), block,
                                       [](int64_t b, const Class& c) { return b < c.first; });
  return static_cast<int>(behind - classes_.begin()) - 1;
}

absl::Status BlockSizes::Check() const {
  int64_t total = 0;
  if (!classes_.empty()) {
    if (!overflow_ && count_ <= INT32_MAX) return absl::OkStatus();
    return InvalidArgument("pool of {} classes of blocks: sizes out of range", classes_.size());
  }
  const bool good =
      count_ > 0 && count_ <= INT32_MAX &&
      (offsets_.empty() ? bytes_ > 0 && !__builtin_mul_overflow(bytes_, count_, &total)
                        : offsets_.back() > 0);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      offsets_.empty() ? fmt::format("pool of {} blocks of {} bytes: out of range", count_, bytes_)
                       : fmt::format("pool of {} blocks: sizes out of range", count_));
}

// Experts take their blocks in order, so the first block tried is nearly always the right one.
int32_t BlockPool::TakeFor(int64_t index) {
  if (sizes_.alike()) return Take();
  std::vector<int32_t> others;
  others.reserve(limit_ - taken_);  // a taken block must not be lost
  int32_t block = Take();
  for (; block >= 0 && block != index; block = Take()) others.push_back(block);
  for (const int32_t other : others) Give(other);
  return block;
}

absl::Status NoMemoryFor(int layer, int expert, const BlockPool& pool) {
  const absl::string_view by = pool.refused_by();
  return ResourceExhausted("no memory for layer {} expert {}: {}", layer, expert,
                           by.empty() ? "the budget has no room"
                                      : fmt::format("{}, though the budget has room",
                                                    fmt::string_view(by.data(), by.size())));
}

BlockRegion BlockPool::Region(int64_t index) const {
  const bool own = !sizes_.alike();
  const auto first = static_cast<int32_t>(own ? index : 0);
  return {Address(first), sizes_.Bytes(first), own ? 1 : sizes_.count()};
}

absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(const BlockSizes& sizes, int64_t limit,
                                                            BudgetTracker* budget, int numa_node) {
  MOERT_RETURN_IF_ERROR(sizes.Check());
  auto memory = MakeRamMemory(sizes, numa_node);
  if (!memory.ok() && sizes.alike() && limit > 0 && limit < sizes.count()) {
    // If address space is limited, reserves only the blocks that the budget allows now.
    return MakeRamBlockPool(BlockSizes(sizes.Bytes(0), limit), limit, budget, numa_node);
  }
  MOERT_RETURN_IF_ERROR(memory.status());
  return PoolOver(*std::move(memory), sizes, limit, budget);
}

absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             const BlockSizes& sizes, int64_t limit,
                                                             BudgetTracker* budget) {
  MOERT_RETURN_IF_ERROR(sizes.Check());
  return PoolOver(MakeHostMemory(allocator, sizes), sizes, limit, budget);
}

absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(const BlockSizes& sizes,
                                                                 int64_t limit,
                                                                 BudgetTracker* budget) {
  MOERT_RETURN_IF_ERROR(sizes.Check());
  return PoolOver(MakeNoMemory(), sizes, limit, budget);
}

}  // namespace moert
