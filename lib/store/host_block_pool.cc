// Blocks from a host's allocator, one allocation a block.
#include <vector>

#include "base/status_macros.h"
#include "moert/scheme.h"
#include "store/block_pool.h"

namespace moert {
namespace {

class HostBlockPool final : public BlockPool {
 public:
  HostBlockPool(HostAllocator* allocator, const BlockSizes& sizes, int64_t limit,
                BudgetTracker* budget)
      : BlockPool(sizes, limit), allocator_(allocator), budget_(budget) {
    addresses_.resize(sizes.count(), nullptr);
    empty_.reserve(sizes.count());
    warm_.reserve(sizes.count());
    for (int64_t i = sizes.count(); i-- > 0;) empty_.push_back(static_cast<int32_t>(i));
  }

  ~HostBlockPool() override {
    for (size_t block = 0; block < addresses_.size(); ++block) {
      if (addresses_[block] != nullptr) Release(static_cast<int32_t>(block));
    }
  }

  int32_t Take() override {
    if (taken_ >= limit_) return -1;
    if (!warm_.empty()) return TakeFrom(&warm_);
    if (empty_.empty() || !budget_->TryReserve(bytes(empty_.back()))) return -1;
    void* memory = allocator_->Allocate(bytes(empty_.back()), kRecordAlignment);
    refused_by_ = memory == nullptr ? kHostRefused : absl::string_view();
    if (memory == nullptr) {
      budget_->Release(bytes(empty_.back()));
      return -1;
    }
    const int32_t block = TakeFrom(&empty_);
    addresses_[block] = static_cast<std::byte*>(memory);
    held_bytes_ += bytes(block);
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

  int64_t held_bytes() const override { return held_bytes_; }
  BlockRegion Region(int64_t /*index*/) const override { return {}; }

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
      Release(block);
      empty_.push_back(block);
    }
  }

  void Release(int32_t block) {
    allocator_->Free(addresses_[block], bytes(block));
    addresses_[block] = nullptr;
    budget_->Release(bytes(block));
    held_bytes_ -= bytes(block);
  }

  HostAllocator* allocator_;
  BudgetTracker* budget_;
  int64_t held_bytes_ = 0;
  std::vector<std::byte*> addresses_;  // null: no memory held
  std::vector<int32_t> empty_;
  std::vector<int32_t> warm_;  // given back, memory still held
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeHostBlockPool(HostAllocator* allocator,
                                                             const BlockSizes& sizes, int64_t limit,
                                                             BudgetTracker* budget) {
  if (sizes.classes() > 0) {
    return MakeClassedBlockPool(ClassedMemory::kRam, allocator, sizes, limit, budget);
  }
  MOERT_RETURN_IF_ERROR(sizes.Check());
  return std::make_unique<HostBlockPool>(allocator, sizes, limit, budget);
}

}  // namespace moert
