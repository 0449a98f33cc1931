// Blocks that are counted and not there.
#include <vector>

#include "base/status_macros.h"
#include "store/block_pool.h"

namespace moert {
namespace {

class CountingBlockPool final : public BlockPool {
 public:
  CountingBlockPool(const BlockSizes& sizes, int64_t limit, BudgetTracker* budget)
      : BlockPool(sizes, limit), budget_(budget) {
    free_.reserve(sizes.count());
    for (int64_t i = sizes.count(); i-- > 0;) free_.push_back(static_cast<int32_t>(i));
  }
  ~CountingBlockPool() override { budget_->Release(held_bytes()); }

  int32_t Take() override {
    if (taken_ >= limit_ || free_.empty()) return -1;
    // Blocks given back below the limit stay held, as real ones do. Charged are the first ones, as
    // if those were taken.
    if (taken_ == held_) {
      if (!budget_->TryReserve(sizes_.Bytes(held_))) return -1;
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

  int64_t held_bytes() const override { return sizes_.Offset(held_); }

 private:
  void ReturnSurplus() {
    for (; held_ > taken_ && held_ > limit_; --held_) budget_->Release(sizes_.Bytes(held_ - 1));
  }

  BudgetTracker* budget_;
  std::vector<int32_t> free_;
  int64_t held_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeCountingBlockPool(const BlockSizes& sizes,
                                                                 int64_t limit,
                                                                 BudgetTracker* budget) {
  if (sizes.classes() > 0) {
    return MakeClassedBlockPool(ClassedMemory::kCounted, nullptr, sizes, limit, budget);
  }
  MOERT_RETURN_IF_ERROR(sizes.Check());
  return std::make_unique<CountingBlockPool>(sizes, limit, budget);
}

}  // namespace moert
