#ifndef MOERT_TESTS_RESEARCH_BENCH_GEMM_GRAPH_H_
#define MOERT_TESTS_RESEARCH_BENCH_GEMM_GRAPH_H_

#include <cuda_runtime.h>

#include <functional>

#include "exec/cuda/cuda_api.h"

namespace moert::cli {

/// A graph of one call of every layer.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (replay_ != nullptr) cudaGraphExecDestroy(replay_);
  }
  absl::Status Capture(cudaStream_t stream, const std::function<absl::Status()>& calls) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const absl::Status called = calls();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (called.ok() && ended == cudaSuccess) {
      const cudaError_t error = cudaGraphInstantiate(&replay_, graph, 0);
      cudaGraphDestroy(graph);
      MOERT_CUDA_RETURN_IF_ERROR(error);
      return absl::OkStatus();
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    return called.ok() ? cuda::ToStatus(ended, "capturing a layer") : called;
  }
  absl::Status Launch(cudaStream_t stream) const {
    MOERT_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(replay_, stream));
    return absl::OkStatus();
  }

 private:
  cudaGraphExec_t replay_ = nullptr;
};

}  // namespace moert::cli

#endif  // MOERT_TESTS_RESEARCH_BENCH_GEMM_GRAPH_H_
