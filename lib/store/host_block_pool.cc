// Blocks from a host's allocator, one allocation a block.
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "moert/scheme.h"
#include "store/block_pool.h"

namespace moert {
namespace {

class HostBlockPool final : public BlockPool {
 public:
  HostBlockPool(HostAllocator* allocator, int64_t block_bytes, int64_t max_blocks, int64_t limit,
                BudgetTracker* budget)
      : BlockPool(block_bytes, limit), allocator_(allocator), budget_(budget) {
    addresses_.resize(max_blocks, nullptr);
    empty_.reserve(max_blocks);
    warm_.reserve(max_blocks);
    for (int64_t i = max_blocks; i-- > 0;) empty_.push_back(static_cast<int32_t>(i));
  }

  ~HostBlockPool() override {
    for (std::byte* address : addresses_) {
      if (address == nullptr) continue;
      allocator_->Free(address, block_bytes_);
      budget_->Release(block_bytes_);
    }
  }

  int32_t Take() override {
    if (taken_ >= limit_) return -1;
    if (!warm_.empty()) return TakeFrom(&warm_);
    if (empty_.empty() || !budget_->TryReserve(block_bytes_)) return -1;
    void* memory = allocator_->Allocate(block_bytes_, kRecordAlignment);
    if (memory == nullptr) {
      budget_->Release(block_bytes_);
      return -1;
    }
    const int32_t block = TakeFrom(&empty_);
    addresses_[block] = static_cast<std::byte*>(memory);
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    warm_.push_back(block);
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override { return addresses_[block]; }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override {
    return (taken_ + static_cast<int64_t>(warm_.size())) * block_bytes_;
  }

 private:
  int32_t TakeFrom(std::vector<int32_t>* list) {
    const int32_t block = list->back();
    list->pop_back();
    ++taken_;
    return block;
  }

  void ReturnSurplus() {
    while (!warm_.empty() && taken_ + static_cast<int64_t>(warm_.size()) > limit_) {
      const int32_t block = warm_.back();
      warm_.pop_back();
      allocator_->Free(addresses_[block], block_bytes_);
      addresses_[block] = nullptr;
      budget_->Release(block_bytes_);
      empty_.push_back(block);
    }
  }

  HostAllocator* allocator_;
  BudgetTracker* budget_;
  std::vector<std::byte*> addresses_;  // null: no memory held
  std::vector<int32_t> empty_;
  std::vector<int32_t> warm_;  // given back, memory still held
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             int64_t block_bytes,
                                                             int64_t max_blocks, int64_t limit,
                                                             BudgetTracker* budget) {
  if (block_bytes <= 0 || max_blocks <= 0 || max_blocks > INT32_MAX) {
    return absl::InvalidArgumentError(
        fmt::format("pool of {} blocks of {} bytes: out of range", max_blocks, block_bytes));
  }
  return std::make_unique<HostBlockPool>(allocator, block_bytes, max_blocks, limit, budget);
}

}  // namespace moert
