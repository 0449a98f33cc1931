// Work that a host records into a CUDA graph once and launches again.
#ifndef MOERT_TESTS_GPU_RECORDED_GRAPH_H_
#define MOERT_TESTS_GPU_RECORDED_GRAPH_H_

#include <cuda_runtime_api.h>

#include "tests/support/catch.h"

namespace moert::test {

class RecordedGraph {
 public:
  RecordedGraph() = default;
  ~RecordedGraph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;

  bool recorded() const { return executable_ != nullptr; }
  /// How the last capture ended; cudaSuccess also where a call was only refused.
  cudaError_t ended() const { return ended_; }
  /// Records what `enqueue` puts on the stream, and returns its status. After an error nothing is
  /// recorded. In either case the stream is not capturing afterwards.
  template <typename Enqueue>
  absl::Status Record(cudaStream_t stream, cudaStreamCaptureMode mode, const Enqueue& enqueue) {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
    const absl::Status status = enqueue();
    ended_ = cudaStreamEndCapture(stream, &graph);
    if (status.ok()) {
      REQUIRE(ended_ == cudaSuccess);
      REQUIRE(cudaGraphInstantiate(&executable_, graph, 0) == cudaSuccess);
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // a capture that failed half way may be invalid
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    REQUIRE(cudaStreamIsCapturing(stream, &capture) == cudaSuccess);
    REQUIRE(capture == cudaStreamCaptureStatusNone);
    return status;
  }
  void Launch(cudaStream_t stream) const {
    REQUIRE(cudaGraphLaunch(executable_, stream) == cudaSuccess);
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
  cudaError_t ended_ = cudaSuccess;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_RECORDED_GRAPH_H_
