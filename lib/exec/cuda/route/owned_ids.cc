#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"
#include "exec/row_kernels.h"
#include "kernels/cuda/route/exchange_rows.h"

namespace moert {
namespace cuda {
namespace {

class CudaOwnedIds final : public OwnedIds {
 public:
  CudaOwnedIds(int device, int64_t experts) : device_(device), experts_(experts) {}
  ~CudaOwnedIds() override {
    const DeviceScope scope(device_);
    memory_ = Buffer();
  }

  absl::Status Init(int64_t pairs) {
    const DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(scope.status());
    Carver count;
    Carve(pairs, &count);
    MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
    Carver carver(memory_.data());
    Carve(pairs, &carver);
    // All zero: this rank owns no share of any expert, and all counts are 0.
    return FillNow(memory_.data(), 0, static_cast<size_t>(count.used()));
  }

  absl::Status Set(absl::Span<const OwnerShare> shares) override {
    const DeviceScope scope(device_);
    std::vector<int32_t> packed;
    for (const OwnerShare& share : shares) packed.push_back(share.of << 16 | share.index);
    return CopyNow(shares_, packed.data(), packed.size() * 4, cudaMemcpyHostToDevice);
  }

  absl::StatusOr<const int32_t*> Keep(int64_t first, int experts, const int32_t* ids, int64_t rows,
                                      int64_t top_k, void* stream) override {
    const DeviceScope scope(device_);
    KeepOwnArgs args;
    args.ids = ids;
    args.shares = shares_ + first;
    args.counts = counts_ + first;
    args.kept = kept_;
    args.pairs = static_cast<int32_t>(rows * top_k);
    args.top_k = static_cast<int32_t>(top_k);
    args.experts = experts;
    MOERT_CUDA_RETURN_IF_ERROR(LaunchKeepOwn(args, static_cast<cudaStream_t>(stream)));
    return kept_;
  }

  absl::StatusOr<std::vector<int64_t>> TakeCounts() override {
    const DeviceScope scope(device_);
    std::vector<int64_t> counts(experts_);
    const size_t bytes = counts.size() * sizeof(counts[0]);
    MOERT_RETURN_IF_ERROR(CopyNow(counts.data(), counts_, bytes, cudaMemcpyDeviceToHost));
    MOERT_RETURN_IF_ERROR(FillNow(counts_, 0, bytes));
    return counts;
  }

 private:
  void Carve(int64_t pairs, Carver* carver) {
    shares_ = carver->Take<int32_t>(experts_);
    counts_ = carver->Take<unsigned long long>(experts_);
    kept_ = carver->Take<int32_t>(pairs);
  }

  const int device_;
  const int64_t experts_;
  Buffer memory_;
  int32_t* shares_ = nullptr;
  unsigned long long* counts_ = nullptr;
  int32_t* kept_ = nullptr;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<OwnedIds>> MakeOwnedIds(int device, int64_t experts, int64_t pairs) {
  auto ids = std::make_unique<cuda::CudaOwnedIds>(device, experts);
  MOERT_RETURN_IF_ERROR(ids->Init(pairs));
  return ids;
}

}  // namespace moert
