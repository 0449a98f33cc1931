#include "store/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"

namespace moert {
namespace {

class RamBlockPool final : public BlockPool {
 public:
  RamBlockPool(std::byte* base, int64_t reserved, int64_t block_bytes, int64_t max_blocks,
               int64_t limit, BudgetTracker* budget)
      : BlockPool(block_bytes, limit), base_(base), reserved_(reserved), budget_(budget) {
    fresh_.reserve(max_blocks);
    warm_.reserve(max_blocks);
    for (int64_t i = max_blocks; i-- > 0;) fresh_.push_back(static_cast<int32_t>(i));
  }

  ~RamBlockPool() override {
    budget_->Release(held_bytes());
    munmap(base_, reserved_);
  }

  int32_t Take() override {
    if (taken_ >= limit_) return -1;
    std::vector<int32_t>& list = warm_.empty() ? fresh_ : warm_;
    if (list.empty() || (warm_.empty() && !budget_->TryReserve(block_bytes_))) return -1;
    const int32_t block = list.back();
    list.pop_back();
    ++taken_;
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    warm_.push_back(block);
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override { return base_ + block * block_bytes_; }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override {
    return (taken_ + static_cast<int64_t>(warm_.size())) * block_bytes_;
  }

 private:
  /// Held blocks (taken and warm) beyond the limit go back to the system.
  void ReturnSurplus() {
    while (!warm_.empty() && taken_ + static_cast<int64_t>(warm_.size()) > limit_) {
      const int32_t block = warm_.back();
      warm_.pop_back();
      madvise(Address(block), block_bytes_, MADV_DONTNEED);
      budget_->Release(block_bytes_);
      fresh_.push_back(block);
    }
  }

  std::byte* base_;
  const int64_t reserved_;
  BudgetTracker* budget_;
  std::vector<int32_t> fresh_;  // no memory behind them
  std::vector<int32_t> warm_;   // given back, memory still held
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeRamBlockPool(int64_t block_bytes, int64_t max_blocks,
                                                            int64_t limit, BudgetTracker* budget) {
  int64_t reserved = 0;
  if (block_bytes <= 0 || max_blocks <= 0 || max_blocks > INT32_MAX ||
      __builtin_mul_overflow(block_bytes, max_blocks, &reserved)) {
    return absl::InvalidArgumentError(
        fmt::format("pool of {} blocks of {} bytes: out of range", max_blocks, block_bytes));
  }
  void* base = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        fmt::format("reserving {} bytes of address space: {}", reserved, std::strerror(errno)));
  }
  return std::make_unique<RamBlockPool>(static_cast<std::byte*>(base), reserved, block_bytes,
                                        max_blocks, limit, budget);
}

}  // namespace moert
