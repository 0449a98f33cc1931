// Blocks that are counted and not there.
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "store/block_pool.h"

namespace moert {
namespace {

class CountingBlockPool final : public BlockPool {
 public:
  CountingBlockPool(int64_t block_bytes, int64_t max_blocks, int64_t limit, BudgetTracker* budget)
      : BlockPool(block_bytes, limit), budget_(budget) {
    free_.reserve(max_blocks);
    for (int64_t i = max_blocks; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
  }
  ~CountingBlockPool() override { budget_->Release(held_bytes()); }

  int32_t Take() override {
    if (taken_ >= limit_ || free_.empty()) return -1;
    // Blocks given back below the limit stay held, as real ones do.
    if (taken_ == held_) {
      if (!budget_->TryReserve(block_bytes_)) return -1;
      ++held_;
    }
    ++taken_;
    const int32_t block = free_.back();
    free_.pop_back();
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    free_.push_back(block);
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override {
    static std::byte nothing{};
    return &nothing;
  }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override { return held_ * block_bytes_; }

 private:
  void ReturnSurplus() {
    for (; held_ > taken_ && held_ > limit_; --held_) budget_->Release(block_bytes_);
  }

  BudgetTracker* budget_;
  std::vector<int32_t> free_;
  int64_t held_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(int64_t block_bytes,
                                                                 int64_t max_blocks, int64_t limit,
                                                                 BudgetTracker* budget) {
  if (block_bytes <= 0 || max_blocks <= 0 || max_blocks > INT32_MAX) {
    return absl::InvalidArgumentError(
        fmt::format("pool of {} blocks of {} bytes: out of range", max_blocks, block_bytes));
  }
  return std::make_unique<CountingBlockPool>(block_bytes, max_blocks, limit, budget);
}

}  // namespace moert
