// A CUDA stream of the plug-in's own, beside those of ggml's CUDA backend, which are private.
// Driver functions are looked up by name at run time: the build needs neither CUDA's headers nor
// its libraries.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_CUDA_STREAM_H_
#define MOERT_EXAMPLES_GGML_BACKEND_CUDA_STREAM_H_

#include <ggml-backend.h>
#include <moert.h>

#include <chrono>
#include <cstddef>
#include <memory>

namespace moert_ggml {

/// One thread at a time.
class CudaStream {
 public:
  /// `device`: of ggml's CUDA backend; `ordinal`: the same device's for the driver. Null: there is
  /// no driver, or it refuses.
  static std::unique_ptr<CudaStream> Create(ggml_backend_dev_t device, int ordinal);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  moert_stream get() const { return stream_; }
  /// Whether the device is a Turing (7.5) or later.
  bool turing() const { return turing_; }

  // Ordering between this stream and that of a CUDA backend, without a wait on the host.

  /// Later work on this stream runs after the backend's work so far.
  bool Follow(ggml_backend_t backend);
  /// Later work of the backend runs after this stream's work so far.
  bool Lead(ggml_backend_t backend);
  /// Later work on this stream runs after an event of the device.
  bool Await(ggml_backend_event_t event);

  /// Whether the stream has no work left.
  bool Idle();
  /// Copies rows of `bytes`, which lie `stride` bytes apart, to consecutive places in device
  /// memory.
  bool Gather(void* to, const void* from, size_t bytes, size_t stride, size_t rows);
  /// Copies from pinned host memory, which must not change until the copy is done.
  bool Write(void* to, const void* from, size_t bytes);
  /// Copies device memory to the host, outside of the streams' order. The host waits for it.
  bool Read(void* to, const void* from, size_t bytes);
  // Marks (events) in the stream.

  enum Mark { kCopiesBegin, kCopiesEnd, kLayerCopied, kMarks };
  bool Set(Mark mark);
  /// Whether the stream has passed the place where the mark was set last.
  bool Reached(Mark mark);
  /// The time between two marks that were both reached; negative: unknown.
  std::chrono::nanoseconds Between(Mark begin, Mark end);

  // Recordings (CUDA graphs) of work on this stream, and on streams that Lead makes wait for it.

  /// From here on work is recorded in place of being done. False: the driver refuses.
  bool BeginRecording();
  /// Ends the recording and returns it; null: it is void. All streams that take part must have been
  /// joined (Follow).
  void* EndRecording();
  bool Replay(void* recording);
  void Drop(void* recording);

  /// The host waits for this stream.
  bool Synchronize();
  /// The host waits for all work on the device.
  bool SynchronizeDevice();

 private:
  struct Driver;
  CudaStream(const Driver* driver, void* context) : driver_(driver), context_(context) {}
  static const Driver* LoadDriver();

  const Driver* const driver_;
  void* const context_;  // the device's primary one
  moert_stream stream_ = nullptr;
  bool turing_ = false;
  ggml_backend_event_t event_ = nullptr;
  void* marks_[kMarks] = {};
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_CUDA_STREAM_H_
