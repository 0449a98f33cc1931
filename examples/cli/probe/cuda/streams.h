// Streams and events with owners.
#ifndef MOERT_EXAMPLES_CLI_PROBE_CUDA_STREAMS_H_
#define MOERT_EXAMPLES_CLI_PROBE_CUDA_STREAMS_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "absl/status/statusor.h"
#include "util/cuda_api.h"

namespace moert::cli {

class Stream {
 public:
  Stream() = default;
  static absl::StatusOr<Stream> Create() {
    Stream stream;
    RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking));
    return stream;
  }
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  static absl::StatusOr<Event> Create() {
    Event event;
    RETURN_IF_CUDA_ERROR(cudaEventCreate(&event.event_));
    return event;
  }
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PROBE_CUDA_STREAMS_H_
