#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/numa.h"
#include "base/status_macros.h"
#include "moert/scheme.h"
#include "store/block_pool.h"

namespace moert {
namespace {

class RamMemory final : public BlockMemory {
 public:
  RamMemory(std::byte* base, const BlockSizes& sizes) : base_(base), sizes_(sizes) {}
  ~RamMemory() override { munmap(base_, sizes_.Offset(sizes_.count())); }

  std::byte* Hold(int32_t block) override { return Address(block); }
  void Drop(int32_t block) override {
    madvise(Address(block), static_cast<size_t>(sizes_.Bytes(block)), MADV_DONTNEED);
  }
  std::byte* Address(int32_t block) const override { return base_ + sizes_.Offset(block); }
  /// Switches huge pages on or off. They save TLB misses when experts are read, but hold memory
  /// beyond the held blocks, once per class and around every hole.
  void MayFillUp(bool may) override {
    madvise(base_, static_cast<size_t>(sizes_.Offset(sizes_.count())),
            may ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  bool contiguous() const override { return true; }

 private:
  std::byte* const base_;
  const BlockSizes sizes_;
};

class HostMemory final : public BlockMemory {
 public:
  HostMemory(HostAllocator* allocator, const BlockSizes& sizes)
      : allocator_(allocator), sizes_(sizes), addresses_(static_cast<size_t>(sizes.count())) {}
  ~HostMemory() override {
    for (int32_t block = 0; block < sizes_.count(); ++block) {
      if (Address(block) != nullptr) Drop(block);
    }
  }

  std::byte* Hold(int32_t block) override {
    auto* memory =
        static_cast<std::byte*>(allocator_->Allocate(sizes_.Bytes(block), kRecordAlignment));
    return addresses_[block] = memory;
  }
  void Drop(int32_t block) override {
    allocator_->Free(Address(block), sizes_.Bytes(block));
    addresses_[block] = nullptr;
  }
  std::byte* Address(int32_t block) const override { return addresses_[block]; }

 private:
  HostAllocator* const allocator_;
  const BlockSizes sizes_;
  std::vector<std::byte*> addresses_;  // null: no memory held
};

class NoMemory final : public BlockMemory {
 public:
  std::byte* Hold(int32_t block) override { return Address(block); }
  void Drop(int32_t /*block*/) override {}
  std::byte* Address(int32_t /*block*/) const override {
    static std::byte nothing{};
    return &nothing;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockMemory>> MakeRamMemory(const BlockSizes& sizes, int numa_node) {
  const auto reserved = static_cast<size_t>(sizes.Offset(sizes.count()));
  void* base = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("reserving {} bytes of address space: {}", reserved,
                             std::strerror(errno));
  }
  absl::Cleanup unmap = [&] { munmap(base, reserved); };
  auto memory = std::make_unique<RamMemory>(static_cast<std::byte*>(base), sizes);
  std::move(unmap).Cancel();
  memory->MayFillUp(false);
  if (numa_node >= 0) MOERT_RETURN_IF_ERROR(BindToNumaNode(base, reserved, numa_node));
  return memory;
}

std::unique_ptr<BlockMemory> MakeHostMemory(HostAllocator* allocator, const BlockSizes& sizes) {
  return std::make_unique<HostMemory>(allocator, sizes);
}

std::unique_ptr<BlockMemory> MakeNoMemory() { return std::make_unique<NoMemory>(); }

}  // namespace moert
