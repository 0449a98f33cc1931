#include "exec/cuda/memory/device_pool.h"

#include <cuda.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"

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
      return Unavailable("CUDA: this driver has no {}", name);
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

/// Blocks are contiguous. Memory is mapped in granules, the driver's smallest unit, under the
/// blocks that are taken. Blocks are handed out lowest first, so the mapped memory is the blocks'
/// bytes, rounded up once.
class DevicePool final : public BlockPool {
 public:
  DevicePool(const VirtualMemory& memory, int device, const BlockSizes& sizes, int64_t limit,
             BudgetTracker* budget, ComputeFence* fence, PeerLink* peers)
      : BlockPool(sizes, limit),
        memory_(memory),
        device_(device),
        budget_(budget),
        fence_(fence),
        peers_(peers) {}

  absl::Status Reserve() {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    std::vector<int> readers = {device_};
    if (peers_ != nullptr) {
      MOERT_ASSIGN_OR_RETURN(readers, peers_->Readers());
    }
    for (const int reader : readers) {
      CUmemAccessDesc& access = access_.emplace_back();
      access.location = {CU_MEM_LOCATION_TYPE_DEVICE, reader};
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    size_t granularity = 0;
    MOERT_CUDA_RETURN_IF_ERROR(
        memory_.granularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    granule_bytes_ = static_cast<int64_t>(granularity);
    granules_.resize(GranulesFor(sizes_.count()));
    reserved_ = static_cast<int64_t>(granules_.size()) * granule_bytes_;
    MOERT_CUDA_RETURN_IF_ERROR(memory_.reserve(&base_, reserved_, 0, 0, 0));
    free_.reserve(sizes_.count());
    for (int64_t i = 0; i < sizes_.count(); ++i) free_.push_back(static_cast<int32_t>(i));
    return absl::OkStatus();  // ascending: a heap already
  }

  ~DevicePool() override {
    budget_->Release(sizes_.Offset(charged_blocks_));
    if (base_ == 0) return;
    DeviceScope scope(device_);
    fence_->Await();
    for (int64_t g = 0; g < static_cast<int64_t>(granules_.size());) g = UnmapRunAt(g);
    memory_.free(base_, static_cast<size_t>(reserved_));
  }

  int32_t Take() override {
    if (taken_ >= limit_ || free_.empty()) return -1;
    if (taken_ == charged_blocks_) {
      if (!budget_->TryReserve(sizes_.Bytes(charged_blocks_))) return -1;
      ++charged_blocks_;
    }
    const bool found = TakeAt(0, false) || TakeMapped() || TakeAt(0, true);
    refused_by_ = found ? absl::string_view() : "the device is out of memory";
    if (!found) {
      ReturnSurplus();
      return -1;
    }
    const int32_t block = free_.back();
    free_.pop_back();
    ++taken_;
    return block;
  }

  void Give(int32_t block) override {
    --taken_;
    for (int64_t g = FirstGranule(block); g <= LastGranule(block); ++g) --granules_[g].blocks;
    free_.push_back(block);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
    ReturnSurplus();
  }

  std::byte* Address(int32_t block) const override {
    return reinterpret_cast<std::byte*>(base_) + sizes_.Offset(block);
  }

  void SetLimit(int64_t blocks) override {
    limit_ = blocks;
    ReturnSurplus();
  }

  int64_t held_bytes() const override { return mapped_granules_ * granule_bytes_; }
  bool HoldAll() override {
    const int64_t wanted = GranulesFor(limit_);
    // If one granule cannot be mapped, the later ones cannot either.
    for (int64_t g = 0; g < wanted; ++g) {
      if (granules_[g].run_first < 0 && !MapRun(g, g, false)) return false;
    }
    return mapped_granules_ <= wanted;
  }

 private:
  /// Granules are mapped in runs, to save calls of the driver: large pools this many at once.
  static constexpr int64_t kRunGranules = 16;

  struct Granule {
    int32_t blocks = 0;      // taken blocks that overlap it
    int64_t run_first = -1;  // the first granule of its run; -1: not mapped
    // The length of a run, kept at its first granule.
    int64_t run_granules = 0;
    CUmemGenericAllocationHandle handle = 0;
  };

  /// Maps free_[i] and moves it to the back of the heap's array. `beyond`: even if that maps more
  /// than the limit's blocks would need, had they not been scattered by a lower limit.
  bool TakeAt(size_t i, bool beyond) {
    const int64_t first = FirstGranule(free_[i]), last = LastGranule(free_[i]);
    for (int64_t g = first; g <= last; ++g) ++granules_[g].blocks;  // so that it is not unmapped
    for (int64_t g = first; g <= last; ++g) {
      if (granules_[g].run_first >= 0 || MapRun(g, last, beyond)) continue;
      for (int64_t k = first; k <= last; ++k) --granules_[k].blocks;
      return false;
    }
    if (i == 0) {
      std::pop_heap(free_.begin(), free_.end(), std::greater<>());
    } else {
      std::swap(free_[i], free_.back());
      std::make_heap(free_.begin(), free_.end() - 1, std::greater<>());
    }
    return true;
  }
  /// Any free block whose memory is mapped.
  bool TakeMapped() {
    for (size_t i = 1; i < free_.size(); ++i) {
      bool mapped = true;
      for (int64_t g = FirstGranule(free_[i]); g <= LastGranule(free_[i]); ++g) {
        mapped = mapped && granules_[g].run_first >= 0;
      }
      if (mapped) return TakeAt(i, false);
    }
    return false;
  }

  int64_t FirstGranule(int64_t block) const { return sizes_.Offset(block) / granule_bytes_; }
  int64_t LastGranule(int64_t block) const {
    return (sizes_.Offset(block + 1) - 1) / granule_bytes_;
  }
  int64_t GranulesFor(int64_t blocks) const {
    return (sizes_.Offset(std::min(blocks, sizes_.count())) + granule_bytes_ - 1) / granule_bytes_;
  }

  /// Maps a run from granule g on, through `last` at least, or up to the next mapped granule before
  /// it; unless `beyond`, never more than the limit's blocks need. False when that or memory does
  /// not allow it.
  bool MapRun(int64_t g, int64_t last, bool beyond) {
    const int64_t room = GranulesFor(limit_) - mapped_granules_;
    int64_t needed = 1;
    while (g + needed <= last && granules_[g + needed].run_first < 0) ++needed;
    if (needed > room && !UnmapIdleRuns(needed - room, last) && !beyond) return false;
    int64_t count = needed;
    const int64_t run = std::clamp<int64_t>(GranulesFor(limit_) / 256, 1, kRunGranules);
    const int64_t most = std::min(
        {run, GranulesFor(limit_) - mapped_granules_, static_cast<int64_t>(granules_.size()) - g});
    while (count < most && granules_[g + count].run_first < 0) ++count;
    return Map(g, count) || (count > needed && Map(g, needed));
  }

  bool Map(int64_t g, int64_t count) {
    DeviceScope scope(device_);
    const auto bytes = static_cast<size_t>(count * granule_bytes_);
    const CUdeviceptr at = base_ + static_cast<CUdeviceptr>(g * granule_bytes_);
    CUmemGenericAllocationHandle handle = 0;
    if (memory_.create(&handle, bytes, &properties_, 0) != CUDA_SUCCESS) return false;
    if (memory_.map(at, bytes, 0, handle, 0) != CUDA_SUCCESS) {
      memory_.release(handle);
      return false;
    }
    granules_[g].handle = handle;
    granules_[g].run_granules = count;
    for (int64_t i = g; i < g + count; ++i) granules_[i].run_first = g;
    mapped_granules_ += count;
    if (memory_.set_access(at, bytes, access_.data(), access_.size()) == CUDA_SUCCESS) return true;
    UnmapRunAt(g);
    return false;
  }

  /// Unmaps the run that begins at g, if there is one. Returns the next granule after it.
  int64_t UnmapRunAt(int64_t g) {
    const int64_t count = granules_[g].run_granules;
    if (granules_[g].run_first != g) return g + 1;
    if (peers_ != nullptr) {
      peers_->BeforeUnmap(reinterpret_cast<const std::byte*>(base_) + g * granule_bytes_,
                          count * granule_bytes_);
    }
    memory_.unmap(base_ + static_cast<CUdeviceptr>(g * granule_bytes_),
                  static_cast<size_t>(count * granule_bytes_));
    memory_.release(granules_[g].handle);
    for (int64_t i = g; i < g + count; ++i) granules_[i].run_first = -1;
    granules_[g].run_granules = 0;
    mapped_granules_ -= count;
    return g + count;
  }

  /// Unmaps runs in which nothing is taken, the highest first and none that begins before granule
  /// `from`, until `wanted` granules are free.
  bool UnmapIdleRuns(int64_t wanted, int64_t from = 0) {
    const int64_t goal = mapped_granules_ - wanted;
    bool synchronized = false;
    for (auto g = static_cast<int64_t>(granules_.size()); g-- > from && mapped_granules_ > goal;) {
      if (granules_[g].run_first < 0) continue;
      if (granules_[g].run_first < from) break;
      const int64_t last = g;
      g = granules_[g].run_first;
      bool idle = true;
      for (int64_t i = g; i <= last; ++i) idle = idle && granules_[i].blocks == 0;
      if (!idle) continue;
      DeviceScope scope(device_);
      // Kernels may still read blocks that were given back.
      if (!synchronized && fence_->Await() != cudaSuccess) return false;
      synchronized = true;
      UnmapRunAt(g);
    }
    return mapped_granules_ <= goal;
  }

  /// Unmaps and uncharges memory beyond the limit, as far as it is not taken.
  void ReturnSurplus() {
    const int64_t surplus = mapped_granules_ - GranulesFor(limit_);
    if (surplus > 0) UnmapIdleRuns(surplus);
    if (charged_blocks_ <= limit_) return;
    const int64_t keep = std::max(taken_, limit_);
    if (keep >= charged_blocks_) return;
    budget_->Release(sizes_.Offset(charged_blocks_) - sizes_.Offset(keep));
    charged_blocks_ = keep;
  }

  const VirtualMemory memory_;
  const int device_;
  BudgetTracker* const budget_;
  ComputeFence* const fence_;
  PeerLink* const peers_;
  std::vector<CUmemAccessDesc> access_;
  CUmemAllocationProp properties_{};
  CUdeviceptr base_ = 0;
  int64_t reserved_ = 0;
  int64_t granule_bytes_ = 0;
  int64_t mapped_granules_ = 0;
  int64_t charged_blocks_ = 0;  // so many of the lowest: the most taken since the limit was lowered
  std::vector<int32_t> free_;   // a heap, lowest first
  std::vector<Granule> granules_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPool>> MakeDevicePool(int device, const BlockSizes& sizes,
                                                          int64_t limit, BudgetTracker* budget,
                                                          ComputeFence* fence, PeerLink* peers) {
  MOERT_RETURN_IF_ERROR(sizes.Check());
  DeviceScope scope(device);
  MOERT_ASSIGN_OR_RETURN(const VirtualMemory memory, VirtualMemory::Load());
  auto pool = std::make_unique<DevicePool>(memory, device, sizes, limit, budget, fence, peers);
  MOERT_RETURN_IF_ERROR(pool->Reserve());
  return pool;
}

}  // namespace moert::cuda
