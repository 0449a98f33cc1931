#include "exec/row_kernels.h"

#include <initializer_list>
#include <utility>

#include "base/status_macros.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/route/exchange_rows.h"

namespace moert {
namespace cuda {
namespace {

DeviceRows Rows(const void* data, DType dtype, int64_t rows, int64_t cols, int64_t stride) {
  return {data, static_cast<int32_t>(dtype), static_cast<int32_t>(rows), static_cast<int32_t>(cols),
          stride};
}

RowRecords Records(const std::byte* records, const RowRecord& record, int64_t rows) {
  return {reinterpret_cast<uint8_t*>(const_cast<std::byte*>(records)), record.bytes, record.ids_at,
          static_cast<int32_t>(rows), static_cast<int32_t>(record.top_k)};
}

class CudaRowKernels final : public RowKernels {
 public:
  explicit CudaRowKernels(int device) : device_(device) {}
  ~CudaRowKernels() override {
    const DeviceScope scope(device_);
    memory_ = Buffer();
  }

  absl::StatusOr<std::byte*> Allocate(int64_t bytes) override {
    const DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(scope.status());
    MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(bytes));
    return memory_.data();
  }
  absl::Status Pack(const MatrixView& rows, const int32_t* ids, const float* weights,
                    const RowRecord& record, std::byte* records, void* stream) override {
    const DeviceScope scope(device_);
    return MOERT_CUDA_STATUS(LaunchPackRecords(
        Rows(rows.data, rows.dtype, rows.rows, rows.cols, rows.row_stride), ids, weights,
        Records(records, record, rows.rows), static_cast<cudaStream_t>(stream)));
  }
  absl::Status TakeRouting(const std::byte* records, const RowRecord& record, int64_t rows,
                           int32_t* ids, float* weights, void* stream) override {
    const DeviceScope scope(device_);
    return MOERT_CUDA_STATUS(LaunchTakeRouting(Records(records, record, rows), ids, weights,
                                               static_cast<cudaStream_t>(stream)));
  }
  absl::Status Add(const RowParts& parts, const MutableMatrixView& out, void* stream) override {
    const DeviceScope scope(device_);
    AddPartsArgs args;
    args.parts = parts.data;
    args.narrow = parts.dtype == DType::kBF16;
    args.ranks = parts.ranks;
    args.out = Rows(out.data, out.dtype, out.rows, out.cols, out.row_stride);
    return MOERT_CUDA_STATUS(LaunchAddParts(args, static_cast<cudaStream_t>(stream)));
  }

 private:
  const int device_;
  Buffer memory_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<RowKernels>> MakeRowKernels(int device) {
  return std::make_unique<cuda::CudaRowKernels>(device);
}

absl::StatusOr<DeviceRates> RatesOf(int device) {
  // Measured with this library's bf16 products on an H200: half of what its tensor cores could do.
  constexpr double kOperationsPerClock = 2100;  // per multiprocessor
  int memory_khz = 0, bus_bits = 0, khz = 0, multiprocessors = 0;
  for (const auto& [value, attribute] : std::initializer_list<std::pair<int*, cudaDeviceAttr>>{
           {&memory_khz, cudaDevAttrMemoryClockRate},
           {&bus_bits, cudaDevAttrGlobalMemoryBusWidth},
           {&khz, cudaDevAttrClockRate},
           {&multiprocessors, cudaDevAttrMultiProcessorCount}}) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(value, attribute, device));
  }
  return DeviceRates{2e3 * memory_khz * (bus_bits / 8.0),
                     1e3 * khz * multiprocessors * kOperationsPerClock};
}

}  // namespace moert
