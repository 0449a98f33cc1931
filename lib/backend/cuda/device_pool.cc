#include "backend/cuda/device_pool.h"

#include <cuda.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/cuda_api.h"
#include "base/bytes_text.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert::cuda {
namespace {

/// The driver's virtual memory calls, found at run time: the library does not link the driver.
struct VirtualMemory {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;

  template <typename F>
  static absl::Status Find(const char* name, F* f) {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || p == nullptr) {
      return absl::UnavailableError(fmt::format("CUDA: this driver has no {}", name));
    }
    *f = reinterpret_cast<F>(p);
    return absl::OkStatus();
  }
  static absl::StatusOr<VirtualMemory> Load() {
    VirtualMemory v;
    MOERT_RETURN_IF_ERROR(Find("cuMemAddressReserve", &v.reserve));
    MOERT_RETURN_IF_ERROR(Find("cuMemAddressFree", &v.free));
    MOERT_RETURN_IF_ERROR(Find("cuMemCreate", &v.create));
    MOERT_RETURN_IF_ERROR(Find("cuMemRelease", &v.release));
    MOERT_RETURN_IF_ERROR(Find("cuMemMap", &v.map));
    MOERT_RETURN_IF_ERROR(Find("cuMemUnmap", &v.unmap));
    MOERT_RETURN_IF_ERROR(Find("cuMemSetAccess", &v.set_access));
    MOERT_RETURN_IF_ERROR(Find("cuMemGetAllocationGranularity", &v.granularity));
    return v;
  }
};

class DevicePool final : public BlockPool {
 public:
  DevicePool(const VirtualMemory& memory, int device, int64_t block_bytes, int64_t max_blocks,
             int64_t limit, BudgetTracker* budget)
      : BlockPool(block_bytes, limit),
        memory_(memory),
        device_(device),
        budget_(budget),
        max_blocks_(max_blocks) {}

  absl::Status Reserve() {
    // The runtime's context must be there before the driver is asked.
    MOERT_CUDA_RETURN_IF_ERROR(cudaFree(nullptr));
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    size_t granularity = 0;
    MOERT_CUDA_RETURN_IF_ERROR(
        memory_.granularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    constexpr int64_t kChunkTarget = int64_t{32} << 20;
    blocks_per_chunk_ = std::clamp<int64_t>(kChunkTarget / block_bytes_, 1, max_blocks_);
    const auto unit = static_cast<int64_t>(granularity);
    chunk_bytes_ = (blocks_per_chunk_ * block_bytes_ + unit - 1) / unit * unit;
    const int64_t chunks = (max_blocks_ + blocks_per_chunk_ - 1) / blocks_per_chunk_;
    reserved_ = chunks * chunk_bytes_;
    MOERT_CUDA_RETURN_IF_ERROR(memory_.reserve(&base_, static_cast<size_t>(reserved_), 0, 0, 0));
    chunks_.resize(chunks);
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t blocks = std::min(blocks_per_chunk_, max_blocks_ - c * blocks_per_chunk_);
      for (int64_t i = blocks; i-- > 0;) {
        chunks_[c].free.push_back(static_cast<int32_t>(c * blocks_per_chunk_ + i));
      }
      chunks_[c].blocks = blocks;
    }
    return absl::OkStatus();
  }

  ~DevicePool() override {
    budget_->Release(charged_blocks_ * block_bytes_);
    if (base_ == 0) return;
    DeviceScope scope(device_);
    cudaDeviceSynchronize();
    for (size_t c = 0; c < chunks_.size(); ++c) Unmap(c);
    memory_.free(base_, static_cast<size_t>(reserved_));
  }

  int32_t Take() override {
    if (taken_ >= limit_) return -1;
    // Full chunks stay full: what is left can then be returned whole.
    int64_t best = -1;
    for (int64_t c = 0; c < static_cast<int64_t>(chunks_.size()); ++c) {
      if (chunks_[c].free.empty()) continue;
      if (chunks_[c].mapped) {
        best = c;
        break;
      }
      if (best < 0) best = c;
    }
    if (best < 0) return -1;
    if (taken_ == charged_blocks_) {
      if (!budget_->TryReserve(block_bytes_)) return -1;
      ++charged_blocks_;
    }
    if (!chunks_[best].mapped && !Map(best)) {
      Recharge();
      return -1;
    }
    const int32_t block = chunks_[best].free.back();
    chunks_[best].free.pop_back();
    ++taken_;
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    chunks_[block / blocks_per_chunk_].free.push_back(block);
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override {
    const int64_t chunk = block / blocks_per_chunk_;
    return reinterpret_cast<std::byte*>(base_) + chunk * chunk_bytes_ +
           (block - chunk * blocks_per_chunk_) * block_bytes_;
  }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override { return mapped_chunks_ * chunk_bytes_; }

 private:
  struct Chunk {
    std::vector<int32_t> free;
    int64_t blocks = 0;
    CUmemGenericAllocationHandle handle = 0;
    bool mapped = false;
  };

  bool Map(int64_t c) {
    DeviceScope scope(device_);
    Chunk& chunk = chunks_[c];
    const auto bytes = static_cast<size_t>(chunk_bytes_);
    const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(c * chunk_bytes_);
    if (memory_.create(&chunk.handle, bytes, &properties_, 0) != CUDA_SUCCESS) return false;
    CUmemAccessDesc access{};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (memory_.map(at, bytes, 0, chunk.handle, 0) != CUDA_SUCCESS) {
      memory_.release(chunk.handle);
      return false;
    }
    chunk.mapped = true;
    ++mapped_chunks_;
    if (memory_.set_access(at, bytes, &access, 1) != CUDA_SUCCESS) {
      Unmap(c);
      return false;
    }
    return true;
  }

  void Unmap(int64_t c) {
    Chunk& chunk = chunks_[c];
    if (!chunk.mapped) return;
    memory_.unmap(base_ + static_cast<CUdeviceptr>(c * chunk_bytes_),
                  static_cast<size_t>(chunk_bytes_));
    memory_.release(chunk.handle);
    chunk.mapped = false;
    --mapped_chunks_;
  }

  void Recharge() {
    const int64_t keep = std::max(taken_, std::min(charged_blocks_, limit_));
    budget_->Release((charged_blocks_ - keep) * block_bytes_);
    charged_blocks_ = keep;
  }

  /// Unmaps empty chunks while the rest holds the limit.
  void ReturnSurplus() {
    if (charged_blocks_ <= limit_) return;
    bool synchronized = false;
    int64_t capacity = 0;
    for (const Chunk& chunk : chunks_) capacity += chunk.mapped ? chunk.blocks : 0;
    for (int64_t c = static_cast<int64_t>(chunks_.size()); c-- > 0;) {
      Chunk& chunk = chunks_[c];
      if (!chunk.mapped || static_cast<int64_t>(chunk.free.size()) < chunk.blocks ||
          capacity - chunk.blocks < std::max(limit_, taken_)) {
        continue;
      }
      DeviceScope scope(device_);
      if (!synchronized) cudaDeviceSynchronize();  // kernels may still read what was given back
      synchronized = true;
      Unmap(c);
      capacity -= chunk.blocks;
    }
    Recharge();
  }

  const VirtualMemory memory_;
  const int device_;
  BudgetTracker* const budget_;
  const int64_t max_blocks_;
  CUmemAllocationProp properties_{};
  CUdeviceptr base_ = 0;
  int64_t reserved_ = 0;
  int64_t chunk_bytes_ = 0;
  int64_t blocks_per_chunk_ = 1;
  int64_t mapped_chunks_ = 0;
  int64_t charged_blocks_ = 0;  // most taken since the limit was last lowered
  std::vector<Chunk> chunks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeDevicePool(int device, int64_t block_bytes,
                                                          int64_t max_blocks, int64_t limit,
                                                          BudgetTracker* budget) {
  int64_t bytes = 0;
  if (block_bytes <= 0 || max_blocks <= 0 || max_blocks > INT32_MAX ||
      __builtin_mul_overflow(block_bytes, max_blocks, &bytes)) {
    return absl::InvalidArgumentError(
        fmt::format("pool of {} blocks of {} bytes: out of range", max_blocks, block_bytes));
  }
  DeviceScope scope(device);
  MOERT_ASSIGN_OR_RETURN(const VirtualMemory memory, VirtualMemory::Load());
  auto pool = std::make_unique<DevicePool>(memory, device, block_bytes, max_blocks, limit, budget);
  MOERT_RETURN_IF_ERROR(pool->Reserve());
  return pool;
}

}  // namespace moert::cuda
