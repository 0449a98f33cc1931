// A capture that another thread of the program makes meanwhile.
#ifndef MOERT_TESTS_GPU_OTHER_CAPTURE_H_
#define MOERT_TESTS_GPU_OTHER_CAPTURE_H_

#include <cuda_runtime.h>

#include <future>
#include <thread>

#include "device_step.h"

namespace moert::test {

class OtherCapture {
 public:
  /// stream: its flags. Work on the default stream ends captures of blocking ones.
  explicit OtherCapture(cudaStreamCaptureMode mode, unsigned stream = cudaStreamNonBlocking)
      : rows_(4, stream), thread_([this, mode] { Run(mode); }) {
    begun_.get_future().wait();
  }
  ~OtherCapture() {
    if (thread_.joinable()) (void)Whole();
  }
  OtherCapture(const OtherCapture&) = delete;
  OtherCapture& operator=(const OtherCapture&) = delete;

  /// Ends it: whether nothing has disturbed it. Once.
  bool Whole() {
    end_.set_value();
    thread_.join();
    return whole_;
  }

 private:
  void Run(cudaStreamCaptureMode mode) {
    cudaGraph_t graph = nullptr;
    const cudaError_t begin = cudaStreamBeginCapture(rows_.stream(), mode);
    cudaMemsetAsync(rows_.y(), 0, 4, rows_.stream());
    begun_.set_value();
    end_.get_future().wait();
    const cudaError_t end = cudaStreamEndCapture(rows_.stream(), &graph);
    cudaGraphDestroy(graph);
    whole_ = begin == cudaSuccess && end == cudaSuccess;
  }

  DeviceRowsBuffer rows_;
  std::promise<void> begun_, end_;
  bool whole_ = false;
  std::thread thread_;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_OTHER_CAPTURE_H_
