#include "host/cuda/step_graphs.h"

#include "util/cuda_api.h"

namespace moert::host {

cudaGraphExec_t StepGraphs::Find(Shape shape) const {
  const auto it = graphs_.find(shape);
  return it == graphs_.end() ? nullptr : it->second;
}

absl::Status StepGraphs::Record(Shape shape, cudaStream_t stream,
                                absl::FunctionRef<absl::Status()> enqueue) {
  if (graphs_.size() >= kMaxGraphs) {
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream));
    Clear();
  }
  // Relaxed: the engine's threads may allocate and synchronize during the recording.
  RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  absl::Status status = enqueue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (status.ok()) status = gpu::ToStatus(ended, "recording a step");
  cudaGraphExec_t executable = nullptr;
  if (status.ok()) {
    status = gpu::ToStatus(cudaGraphInstantiate(&executable, graph, 0), "instantiating a step");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) {
    cudaGetLastError();  // clears the error
    return status;
  }
  graphs_[shape] = executable;
  return absl::OkStatus();
}

void StepGraphs::Clear() {
  for (const auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
  seen_.clear();
}

}  // namespace moert::host
