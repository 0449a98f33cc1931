#include "store/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "base/numa.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {
namespace {

class RamBlockPool final : public BlockPool {
 public:
  RamBlockPool(std::byte* base, const BlockSizes& sizes, int64_t limit, BudgetTracker* budget)
      : BlockPool(sizes, limit), base_(base), budget_(budget) {
    fresh_.reserve(sizes.count());
    warm_.reserve(sizes.count());
    for (int64_t i = sizes.count(); i-- > 0;) fresh_.push_back(static_cast<int32_t>(i));
  }

  ~RamBlockPool() override {
    budget_->Release(held_bytes());
    munmap(base_, sizes_.Offset(sizes_.count()));
  }

  int32_t Take() override {
    if (taken_ >= limit_) return -1;
    std::vector<int32_t>& list = warm_.empty() ? fresh_ : warm_;
    if (list.empty()) return -1;
    const int32_t block = list.back();
    if (warm_.empty()) {
      if (!budget_->TryReserve(bytes(block))) return -1;
      held_bytes_ += bytes(block);
    }
    list.pop_back();
    ++taken_;
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    warm_.push_back(block);
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override { return base_ + sizes_.Offset(block); }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override { return held_bytes_; }

 private:
  /// Held blocks (taken and warm) beyond the limit go back to the system.
  void ReturnSurplus() {
    while (!warm_.empty() && taken_ + static_cast<int64_t>(warm_.size()) > limit_) {
      const int32_t block = warm_.back();
      warm_.pop_back();
      if (!has_holes_) {
        // The kernel would fill them up to huge pages again, beyond the budget.
        madvise(base_, static_cast<size_t>(sizes_.Offset(sizes_.count())), MADV_NOHUGEPAGE);
        has_holes_ = true;
      }
      madvise(Address(block), bytes(block), MADV_DONTNEED);
      budget_->Release(bytes(block));
      held_bytes_ -= bytes(block);
      fresh_.push_back(block);
    }
  }

  std::byte* base_;
  BudgetTracker* budget_;
  int64_t held_bytes_ = 0;
  bool has_holes_ = false;      // memory was given back
  std::vector<int32_t> fresh_;  // no memory behind them
  std::vector<int32_t> warm_;   // given back, memory still held
};

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
    return absl::InvalidArgumentError(
        fmt::format("pool of {} classes of blocks: sizes out of range", classes_.size()));
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

// They are taken in order, so that the first is nearly always the one.
int32_t BlockPool::TakeFor(int64_t index) {
  if (sizes_.alike()) return Take();
  std::vector<int32_t> others;
  others.reserve(static_cast<size_t>(limit_ - taken_));  // a taken block must not be lost
  int32_t block = Take();
  for (; block >= 0 && block != index; block = Take()) others.push_back(block);
  for (const int32_t other : others) Give(other);
  return block;
}

absl::Status NoMemoryFor(int layer, int expert, const BlockPool& pool) {
  const absl::string_view by = pool.refused_by();
  return absl::ResourceExhaustedError(fmt::format(
      "no memory for layer {} expert {}: {}", layer, expert,
      by.empty()
          ? "the budget has no room"
          : fmt::format("{}, though the budget has room", fmt::string_view(by.data(), by.size()))));
}

BlockRegion BlockPool::Region(int64_t index) const {
  const bool own = !sizes_.alike();
  const auto first = static_cast<int32_t>(own ? index : 0);
  return {Address(first), sizes_.Bytes(first), own ? 1 : sizes_.count()};
}

absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(const BlockSizes& sizes, int64_t limit,
                                                            BudgetTracker* budget, int numa_node) {
  if (sizes.classes() > 0) {
    return MakeClassedBlockPool(ClassedMemory::kRam, nullptr, sizes, limit, budget, numa_node);
  }
  MOERT_RETURN_IF_ERROR(sizes.Check());
  const int64_t reserved = sizes.Offset(sizes.count());
  void* base = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED && sizes.alike() && limit > 0 && limit < sizes.count()) {
    // Where address space is limited, room for what the budget allows now.
    return MakeRamBlockPool(BlockSizes(sizes.Bytes(0), limit), limit, budget, numa_node);
  }
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("reserving {} bytes of address space: {}", reserved, std::strerror(errno)));
  }
  // Advice only: streaming through 4 KiB pages costs a TLB miss each. Blocks are taken in order, so
  // that no more than one huge page reaches beyond those that are held.
  madvise(base, static_cast<size_t>(reserved), MADV_HUGEPAGE);
  absl::Cleanup unmap = [&] { munmap(base, static_cast<size_t>(reserved)); };
  auto pool = std::make_unique<RamBlockPool>(static_cast<std::byte*>(base), sizes, limit, budget);
  std::move(unmap).Cancel();
  if (numa_node >= 0) {
    MOERT_RETURN_IF_ERROR(BindToNumaNode(base, static_cast<size_t>(reserved), numa_node));
  }
  return pool;
}

}  // namespace moert
