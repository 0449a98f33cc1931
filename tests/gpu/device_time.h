// Times single launches on a CUDA device.
#ifndef MOERT_TESTS_GPU_DEVICE_TIME_H_
#define MOERT_TESTS_GPU_DEVICE_TIME_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/support/catch.h"

namespace moert::test {

/// Microseconds of one of the launches that `once` makes, in a graph: median of 9.
inline double Microseconds(cudaStream_t stream, const std::function<void(int)>& once) {
  constexpr int kRepeats = 48;
  once(0);
  cudaEvent_t begin, end;
  REQUIRE(cudaEventCreate(&begin) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  for (int i = 0; i < kRepeats; ++i) once(i);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  std::vector<float> ms;
  for (int i = 0; i < 11; ++i) {
    float t = 0;
    cudaEventRecord(begin, stream);
    cudaGraphLaunch(executable, stream);
    cudaEventRecord(end, stream);
    REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
    cudaEventElapsedTime(&t, begin, end);
    if (i > 1) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms[ms.size() / 2] * 1e3 / kRepeats;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_DEVICE_TIME_H_
