// A CUDA stream of the plug-in's own beside those of ggml's CUDA backend, whose streams are
// private. The driver is asked by name: neither CUDA's headers nor its libraries are needed to
// build.
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

  // Order between this stream and that of a CUDA backend; nobody waits on the host.

  /// Work that this stream gets from now on comes behind the backend's work so far.
  bool Follow(ggml_backend_t backend);
  /// The other way round.
  bool Lead(ggml_backend_t backend);
  /// Work that this stream gets from now on comes behind an event of the device.
  bool Await(ggml_backend_event_t event);

  /// Whether it has nothing more to do.
  bool Idle();
  /// Rows of `bytes` that lie `stride` bytes apart, one behind the other, within device memory.
  bool Gather(void* to, const void* from, size_t bytes, size_t stride, size_t rows);
  /// From pinned memory of the host's, which stays as it is until then.
  bool Write(void* to, const void* from, size_t bytes);
  /// Device memory into the host's, beside what streams do. The host waits for it.
  bool Read(void* to, const void* from, size_t bytes);
  // Marks in it.

  enum Mark { kCopiesBegin, kCopiesEnd, kLayerCopied, kMarks };
  bool Set(Mark mark);
  /// Whether the stream has come to the mark where it was set last.
  bool Reached(Mark mark);
  /// From one to another, both of which were reached; negative: not known.
  std::chrono::nanoseconds Between(Mark begin, Mark end);

  /// The host waits for this stream.
  bool Synchronize();
  /// The host waits for everything the device has got.
  bool SynchronizeDevice();

 private:
  struct Driver;
  CudaStream(const Driver* driver, void* context) : driver_(driver), context_(context) {}
  static const Driver* LoadDriver();

  const Driver* const driver_;
  void* const context_;  // the device's primary one
  moert_stream stream_ = nullptr;
  ggml_backend_event_t event_ = nullptr;
  void* marks_[kMarks] = {};
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_CUDA_STREAM_H_
