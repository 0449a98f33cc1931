#include "exec/cuda/copy_branch.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace moert::cuda {
namespace {

/// Where a stream stands in the capture that it is part of.
struct CapturePlace {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> behind;
};

absl::Status FindPlace(cudaStream_t stream, CapturePlace* place) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaGraphEdgeData* edges = nullptr;
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaStreamGetCaptureInfo(stream, &status, &place->id, &place->graph, &nodes, &edges, &count));
#else
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaStreamGetCaptureInfo(stream, &status, &place->id, &place->graph, &nodes, &count));
#endif
  if (status != cudaStreamCaptureStatusActive) {
    return absl::InternalError("copies of a call that is not captured");
  }
  place->behind.insert(place->behind.end(), nodes, nodes + count);
  return absl::OkStatus();
}

absl::Status StandBehind(cudaStream_t stream, cudaGraphNode_t node) {
#if CUDART_VERSION >= 13000
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1,
                                                                 cudaStreamAddCaptureDependencies));
#else
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamAddCaptureDependencies));
#endif
  return absl::OkStatus();
}

}  // namespace

CopyBranch::~CopyBranch() {
  for (cudaEvent_t event : {predicted_, copied_, forked_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (cudaStream_t stream : {predictions_, copies_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::Status CopyBranch::Init() {
  int lowest = 0, highest = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  for (cudaStream_t* stream : {&copies_, &predictions_}) {
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest));
  }
  for (cudaEvent_t* event : {&forked_, &copied_, &predicted_}) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  return absl::OkStatus();
}

absl::Status CopyBranch::Fork(cudaStream_t stream, bool predicts) {
  predicts_ = predicts;
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(copies_, forked_, 0));
  if (predicts) MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(predictions_, forked_, 0));
  return StandBehindPrefetch();
}

absl::Status CopyBranch::StandBehindPrefetch() {
  const cudaGraphNode_t last = std::exchange(prefetch_, nullptr);
  if (last == nullptr) return absl::OkStatus();
  CapturePlace place;
  MOERT_RETURN_IF_ERROR(FindPlace(copies_, &place));
  // Of another graph: whoever launches it orders the two.
  if (place.id != capture_) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(StandBehind(copies_, last));
  return predicts_ ? StandBehind(predictions_, last) : absl::OkStatus();
}

absl::Status CopyBranch::Prefetch(LayerPrefetch* prefetch) {
  CapturePlace place;
  MOERT_RETURN_IF_ERROR(FindPlace(copies_, &place));
  MOERT_RETURN_IF_ERROR(FindPlace(predictions_, &place));
  cudaGraphNode_t node = nullptr;
  MOERT_CUDA_RETURN_IF_ERROR(
      AddCopyPrefetched(place.graph, place.behind.data(), place.behind.size(), prefetch, &node));
  prefetch_ = node;
  capture_ = place.id;
  return absl::OkStatus();
}

absl::Status CopyBranch::Join(cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(copied_, copies_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, copied_, 0));
  if (!predicts_) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(predicted_, predictions_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream, predicted_, 0));
  return absl::OkStatus();
}

}  // namespace moert::cuda
