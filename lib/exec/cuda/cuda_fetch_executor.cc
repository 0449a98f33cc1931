#include "exec/cuda/cuda_fetch_executor.h"

#include "base/status_macros.h"

namespace moert::cuda {
namespace {

/// Ids and weights of a call.
struct Pairs {
  int32_t* ids;
  float* weights;

  Pairs(const Extent& extent, Carver* carver)
      : ids(carver->Take<int32_t>(extent.pairs)), weights(carver->Take<float>(extent.pairs)) {}
};

}  // namespace

CudaFetchExecutor::CudaFetchExecutor(const ExecutorParts& parts, int device, ComputeFence* fence)
    : FetchExecutor(parts),
      model_(parts.source->model()),
      device_(device),
      fence_(fence),
      extent_(model_, OperandUse{}, parts.max_tokens, nullptr) {}

CudaFetchExecutor::~CudaFetchExecutor() {
  leaving_.emplace(device_);
  // The host's kernels read the tables that go now.
  fence_->Await();
  AwaitDevice();
  if (arrived_ != nullptr) cudaEventDestroy(arrived_);
}

int64_t CudaFetchExecutor::Bytes(const MoeModelSpec& model, int64_t max_tokens) {
  Carver count;
  Pairs(Extent(model, OperandUse{}, max_tokens, nullptr), &count);
  return count.used() + DeviceFetch::Bytes(model);
}

absl::Status CudaFetchExecutor::Init() {
  DeviceScope scope(device_);
  Carver count;
  Pairs(extent_, &count);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  const Pairs pairs(extent_, &carver);
  MOERT_RETURN_IF_ERROR(returned_.Init(&model_, extent_));
  MOERT_RETURN_IF_ERROR(fetch_.Init(&model_, pairs.ids, pairs.weights, &returned_, fence_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming));
  // The fill above is the default stream's.
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
  return absl::OkStatus();
}

absl::Status CudaFetchExecutor::SetFetched(const ExecutorCall&, const RoutingResult&) {
  return absl::OkStatus();
}

absl::StatusOr<const int32_t*> CudaFetchExecutor::PlaceSlots(const ExecutorCall& call,
                                                             const GivenRouting& given,
                                                             const PolicyContext* late,
                                                             const VersionedStore& store) {
  DeviceScope scope(device_);
  return fetch_.Place(call, given, late, store);
}

absl::Status CudaFetchExecutor::LeaveSlots(void* stream) {
  DeviceScope scope(device_);
  return fetch_.Leave(static_cast<cudaStream_t>(stream));
}

absl::Status CudaFetchExecutor::ScoreNext(const ExecutorCall& call, bool /*filled*/,
                                          std::vector<float>* scores) {
  DeviceScope scope(device_);
  ++host_syncs_;
  MOERT_RETURN_IF_ERROR(
      BringRows(call.hidden, static_cast<cudaStream_t>(call.stream), arrived_, x()));
  return parts().router->Score(call.layer + 1, x(), call.tokens, scores);
}

absl::Status CudaFetchExecutor::BringGiven(const ExecutorCall& call, const GivenRouting& given,
                                           std::vector<int32_t>* ids, std::vector<float>* weights) {
  DeviceScope scope(device_);
  ++host_syncs_;
  return BringRouting(given, model_.layers[call.layer].num_experts,
                      static_cast<cudaStream_t>(call.stream), arrived_, ids, weights);
}

bool CudaFetchExecutor::TakeRouting(PolicyContext* context, RoutingResult* routing) {
  DeviceScope scope(device_);
  return returned_.Take(context, routing);
}

absl::Status CudaFetchExecutor::OpenStep(VersionedStore* store, int64_t epoch, void* stream) {
  DeviceScope scope(device_);
  return fetch_.OpenStep(*store, epoch, static_cast<cudaStream_t>(stream));
}

absl::Status CudaFetchExecutor::CloseStep(void* stream) {
  DeviceScope scope(device_);
  return fetch_.Leave(static_cast<cudaStream_t>(stream));
}

}  // namespace moert::cuda
