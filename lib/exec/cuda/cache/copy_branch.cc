#include "exec/cuda/cache/copy_branch.h"

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

/// Makes `stream` wait for a branch if it was forked.
absl::Status JoinOne(bool* forked, cudaStream_t branch, cudaEvent_t end, cudaStream_t stream) {
  if (!std::exchange(*forked, false)) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(end, branch));
  return MOERT_CUDA_STATUS(cudaStreamWaitEvent(stream, end, 0));
}

}  // namespace

CopyBranch::~CopyBranch() {
  for (cudaEvent_t event :
       {predicted_, computed_, copied_, forked_prediction_, forked_cpu_, forked_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (cudaStream_t stream : {predictions_, cpu_, copies_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::Status CopyBranch::Init() {
  MOERT_RETURN_IF_ERROR(MakeUrgentStream(&copies_));
  MOERT_RETURN_IF_ERROR(MakeUrgentStream(&cpu_));
  MOERT_RETURN_IF_ERROR(MakeUrgentStream(&predictions_));
  for (cudaEvent_t* event :
       {&forked_, &forked_cpu_, &forked_prediction_, &copied_, &computed_, &predicted_}) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  return absl::OkStatus();
}

absl::Status CopyBranch::ForkPrediction(cudaStream_t stream, const LayerPrefetch* list) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked_prediction_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(predictions_, forked_prediction_, 0));
  prediction_forked_ = true;
  return Reads(list) ? StandBehindPrefetch(predictions_) : absl::OkStatus();
}

absl::Status CopyBranch::ForkCopies(cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(copies_, forked_, 0));
  copies_forked_ = true;
  MOERT_RETURN_IF_ERROR(StandBehindPrefetch(copies_));
  prefetch_ = nullptr;
  return absl::OkStatus();
}

absl::Status CopyBranch::ForkCpu(cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked_cpu_, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(cpu_, forked_cpu_, 0));
  cpu_forked_ = true;
  return absl::OkStatus();
}

absl::Status CopyBranch::StandBehindPrefetch(cudaStream_t stream) {
  if (prefetch_ == nullptr) return absl::OkStatus();
  CapturePlace place;
  MOERT_RETURN_IF_ERROR(FindPlace(stream, &place));
  // Another graph's copies are ordered by the host that launches it.
  return place.id == capture_ ? StandBehind(stream, prefetch_) : absl::OkStatus();
}

absl::Status CopyBranch::Prefetch(LayerPrefetch* prefetch) {
  CapturePlace place;
  MOERT_RETURN_IF_ERROR(FindPlace(copies_, &place));
  if (prediction_forked_) MOERT_RETURN_IF_ERROR(FindPlace(predictions_, &place));
  cudaGraphNode_t node = nullptr;
  MOERT_CUDA_RETURN_IF_ERROR(
      AddCopyPrefetched(place.graph, place.behind.data(), place.behind.size(), prefetch, &node));
  prefetch_ = node;
  list_ = prefetch;
  capture_ = place.id;
  return absl::OkStatus();
}

absl::Status CopyBranch::JoinCopies(cudaStream_t stream) {
  return JoinOne(&copies_forked_, copies_, copied_, stream);
}

absl::Status CopyBranch::Join(cudaStream_t stream) {
  absl::Status status = JoinCopies(stream);
  status.Update(JoinOne(&cpu_forked_, cpu_, computed_, stream));
  status.Update(JoinOne(&prediction_forked_, predictions_, predicted_, stream));
  return status;
}

}  // namespace moert::cuda
