// Blocks in classes of one size each. Every class has address space for all its blocks. Memory is
// held for blocks that are taken or were taken; that of free blocks moves to another class when
// that class needs it.
#include <limits>
#include <utility>
#include <vector>

#include "store/block_pool.h"

namespace moert {
namespace {

class ClassedBlockPool final : public BlockPool {
 public:
  ClassedBlockPool(std::unique_ptr<BlockMemory> memory, const BlockSizes& sizes, int64_t limit,
                   BudgetTracker* budget)
      : BlockPool(sizes, limit),
        memory_(std::move(memory)),
        budget_(budget),
        classes_(static_cast<size_t>(sizes.classes())) {
    for (int c = 0; c < sizes.classes(); ++c) {
      Class& lists = classes_[c];
      const auto count = static_cast<size_t>(sizes.end(c) - sizes.first(c));
      lists.fresh.reserve(count);
      lists.warm.reserve(count);
      for (int64_t i = sizes.end(c); i-- > sizes.first(c);) {
        lists.fresh.push_back(static_cast<int32_t>(i));
      }
    }
  }
  ~ClassedBlockPool() override { budget_->Release(held_bytes_); }

  int32_t Take() override { return TakeOf(0); }
  int32_t TakeFor(int64_t index) override { return TakeOf(sizes_.ClassFor(index)); }

  void Give(int32_t block) override {
    --taken_;
    taken_bytes_ -= bytes(block);
    classes_[sizes_.ClassOf(block)].warm.push_back(block);
    KeepBelow(limit_bytes_);
  }

  std::byte* Address(int32_t block) const override { return memory_->Address(block); }
  BlockRegion Region(int64_t index) const override {
    if (!memory_->contiguous()) return {};
    const int c = sizes_.ClassFor(index);
    const auto first = static_cast<int32_t>(sizes_.first(c));
    return {Address(first), sizes_.Bytes(first), sizes_.end(c) - sizes_.first(c)};
  }

  void SetLimit(int64_t blocks) override { limit_ = blocks; }
  void SetByteLimit(int64_t bytes) override {
    limit_bytes_ = bytes;
    memory_->MayFillUp(bytes >= sizes_.Offset(sizes_.count()));  // there is room for every block
    KeepBelow(limit_bytes_);
  }
  int64_t limit_bytes() const override { return limit_bytes_; }
  bool Over(int64_t /*blocks*/, int64_t bytes) const override { return taken_bytes_ > bytes; }
  int64_t held_bytes() const override { return held_bytes_; }

 private:
  struct Class {
    std::vector<int32_t> fresh;  // free blocks without memory
    std::vector<int32_t> warm;   // free blocks whose memory is still held
  };

  int32_t TakeOf(int c) {
    Class& lists = classes_[c];
    const int64_t size = sizes_.Bytes(sizes_.first(c));
    if (taken_bytes_ + size > limit_bytes_) return -1;
    if (lists.warm.empty() && !Hold(&lists, size)) return -1;
    const int32_t block = lists.warm.back();
    lists.warm.pop_back();
    ++taken_;
    taken_bytes_ += size;
    return block;
  }

  /// Makes a fresh block of `size` bytes warm. If there is no room, other free blocks give up their
  /// memory.
  bool Hold(Class* lists, int64_t size) {
    if (lists->fresh.empty() || !KeepBelow(limit_bytes_ - size)) return false;
    while (!budget_->TryReserve(size)) {
      if (!DropOne()) return false;
    }
    const int32_t block = lists->fresh.back();
    const bool held = memory_->Hold(block) != nullptr;
    refused_by_ = held ? absl::string_view() : kHostRefused;
    if (!held) {
      budget_->Release(size);
      return false;
    }
    held_bytes_ += size;
    lists->fresh.pop_back();
    lists->warm.push_back(block);
    return true;
  }

  bool KeepBelow(int64_t bytes) {
    while (held_bytes_ > bytes) {
      if (!DropOne()) return false;
    }
    return true;
  }

  /// Drops a warm block of the class that has most warm blocks.
  bool DropOne() {
    Class* most = nullptr;
    for (Class& c : classes_) {
      if (!c.warm.empty() && (most == nullptr || c.warm.size() > most->warm.size())) most = &c;
    }
    if (most == nullptr) return false;
    const int32_t block = most->warm.back();
    most->warm.pop_back();
    memory_->Drop(block);
    budget_->Release(bytes(block));
    held_bytes_ -= bytes(block);
    most->fresh.push_back(block);
    return true;
  }

  const std::unique_ptr<BlockMemory> memory_;
  BudgetTracker* const budget_;
  std::vector<Class> classes_;
  int64_t limit_bytes_ = std::numeric_limits<int64_t>::max();
  int64_t taken_bytes_ = 0;
  int64_t held_bytes_ = 0;
};

}  // namespace

std::unique_ptr<BlockPool> MakeClassedBlockPool(std::unique_ptr<BlockMemory> memory,
                                                const BlockSizes& sizes, int64_t limit,
                                                BudgetTracker* budget) {
  return std::make_unique<ClassedBlockPool>(std::move(memory), sizes, limit, budget);
}

}  // namespace moert
