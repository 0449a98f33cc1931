#include "cuda_stream.h"

#include <dlfcn.h>
#include <ggml-backend-impl.h>

#include <cstdint>

namespace moert_ggml {
namespace {

// CUDA_MEMCPY2D of the driver.
struct Copy2D {
  size_t from_x = 0, from_y = 0;
  unsigned from_kind = 0;
  const void* from_host = nullptr;
  uintptr_t from = 0;
  void* from_array = nullptr;
  size_t from_stride = 0;
  size_t to_x = 0, to_y = 0;
  unsigned to_kind = 0;
  void* to_host = nullptr;
  uintptr_t to = 0;
  void* to_array = nullptr;
  size_t to_stride = 0;
  size_t bytes = 0, rows = 0;
};

}  // namespace

// Functions of libcuda.so.1, by their ABI. Each returns 0 on success.
struct CudaStream::Driver {
  int (*init)(unsigned flags);
  int (*device_get)(int* device, int ordinal);
  int (*device_attribute)(int* value, int attribute, int device);
  int (*retain)(void** context, int device);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*synchronize_context)();
  int (*stream_create)(moert_stream* stream, unsigned flags);
  int (*stream_destroy)(moert_stream stream);
  int (*stream_synchronize)(moert_stream stream);
  int (*stream_query)(moert_stream stream);
  int (*copy_to_host)(void* to, uintptr_t from, size_t bytes);
  int (*copy_from_host)(uintptr_t to, const void* from, size_t bytes, moert_stream stream);
  int (*copy_rows)(const Copy2D* copy, moert_stream stream);
  int (*stream_wait)(moert_stream stream, void* event, unsigned flags);
  int (*event_create)(void** event, unsigned flags);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, moert_stream stream);
  int (*event_query)(void* event);
  int (*event_elapsed)(float* milliseconds, void* begin, void* end);
  int (*begin_capture)(moert_stream stream, int mode);
  int (*end_capture)(moert_stream stream, void** graph);
  int (*graph_instantiate)(void** recording, void* graph, unsigned long long flags);
  int (*graph_destroy)(void* graph);
  int (*graph_launch)(void* recording, moert_stream stream);
  int (*recording_destroy)(void* recording);

  // Makes the context current on this thread for the object's lifetime.
  class Scope {
   public:
    Scope(const Driver* driver, void* context) : driver_(driver) { driver_->push(context); }
    ~Scope() {
      void* context = nullptr;
      driver_->pop(&context);
    }

   private:
    const Driver* const driver_;
  };
};

const CudaStream::Driver* CudaStream::LoadDriver() {
  static const Driver* const loaded = []() -> const Driver* {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    static Driver driver = {};
    bool all = true;
    const auto find = [&](auto* function, const char* name) {
      *reinterpret_cast<void**>(function) = dlsym(library, name);
      all = all && *function != nullptr;
    };
    find(&driver.init, "cuInit");
    find(&driver.device_get, "cuDeviceGet");
    find(&driver.device_attribute, "cuDeviceGetAttribute");
    find(&driver.retain, "cuDevicePrimaryCtxRetain");
    find(&driver.push, "cuCtxPushCurrent_v2");
    find(&driver.pop, "cuCtxPopCurrent_v2");
    find(&driver.synchronize_context, "cuCtxSynchronize");
    find(&driver.stream_create, "cuStreamCreate");
    find(&driver.stream_destroy, "cuStreamDestroy_v2");
    find(&driver.stream_synchronize, "cuStreamSynchronize");
    find(&driver.stream_query, "cuStreamQuery");
    find(&driver.copy_to_host, "cuMemcpyDtoH_v2");
    find(&driver.copy_from_host, "cuMemcpyHtoDAsync_v2");
    find(&driver.copy_rows, "cuMemcpy2DAsync_v2");
    find(&driver.stream_wait, "cuStreamWaitEvent");
    find(&driver.event_create, "cuEventCreate");
    find(&driver.event_destroy, "cuEventDestroy_v2");
    find(&driver.event_record, "cuEventRecord");
    find(&driver.event_query, "cuEventQuery");
    find(&driver.event_elapsed, "cuEventElapsedTime");
    find(&driver.begin_capture, "cuStreamBeginCapture_v2");
    find(&driver.end_capture, "cuStreamEndCapture");
    find(&driver.graph_instantiate, "cuGraphInstantiateWithFlags");
    find(&driver.graph_destroy, "cuGraphDestroy");
    find(&driver.graph_launch, "cuGraphLaunch");
    find(&driver.recording_destroy, "cuGraphExecDestroy");
    return all && driver.init(0) == 0 ? &driver : nullptr;
  }();
  return loaded;
}

std::unique_ptr<CudaStream> CudaStream::Create(ggml_backend_dev_t device, int ordinal) {
  const Driver* driver = LoadDriver();
  int number = 0;
  void* context = nullptr;
  if (driver == nullptr || driver->device_get(&number, ordinal) != 0 ||
      driver->retain(&context, number) != 0) {
    return nullptr;
  }
  std::unique_ptr<CudaStream> made(new CudaStream(driver, context));
  const Driver::Scope scope(driver, context);
  constexpr int kMajor = 75, kMinor = 76;  // of the compute capability
  int major = 0, minor = 0;
  if (driver->device_attribute(&major, kMajor, number) != 0 ||
      driver->device_attribute(&minor, kMinor, number) != 0) {
    return nullptr;
  }
  made->turing_ = 10 * major + minor >= 75;
  constexpr unsigned kNonBlocking = 1;
  made->event_ = ggml_backend_event_new(device);
  if (made->event_ == nullptr || driver->stream_create(&made->stream_, kNonBlocking) != 0) {
    return nullptr;
  }
  for (void*& mark : made->marks_) {
    if (driver->event_create(&mark, 0) != 0) return nullptr;
  }
  return made;
}

CudaStream::~CudaStream() {
  const Driver::Scope scope(driver_, context_);
  if (stream_ != nullptr) driver_->stream_destroy(stream_);
  if (event_ != nullptr) ggml_backend_event_free(event_);
  for (void* mark : marks_) {
    if (mark != nullptr) driver_->event_destroy(mark);
  }
}

bool CudaStream::Follow(ggml_backend_t backend) {
  ggml_backend_event_record(event_, backend);
  return Await(event_);
}

bool CudaStream::Lead(ggml_backend_t backend) {
  {
    const Driver::Scope scope(driver_, context_);
    if (driver_->event_record(event_->context, stream_) != 0) return false;
  }
  ggml_backend_event_wait(backend, event_);
  return true;
}

bool CudaStream::Await(ggml_backend_event_t event) {
  const Driver::Scope scope(driver_, context_);
  return driver_->stream_wait(stream_, event->context, 0) == 0;
}

bool CudaStream::Idle() {
  const Driver::Scope scope(driver_, context_);
  return driver_->stream_query(stream_) == 0;
}

bool CudaStream::Gather(void* to, const void* from, size_t bytes, size_t stride, size_t rows) {
  constexpr unsigned kDevice = 2;
  Copy2D copy;
  copy.from_kind = copy.to_kind = kDevice;
  copy.from = reinterpret_cast<uintptr_t>(from);
  copy.from_stride = stride;
  copy.to = reinterpret_cast<uintptr_t>(to);
  copy.to_stride = bytes;
  copy.bytes = bytes;
  copy.rows = rows;
  const Driver::Scope scope(driver_, context_);
  return driver_->copy_rows(&copy, stream_) == 0;
}

bool CudaStream::Write(void* to, const void* from, size_t bytes) {
  const Driver::Scope scope(driver_, context_);
  return driver_->copy_from_host(reinterpret_cast<uintptr_t>(to), from, bytes, stream_) == 0;
}

bool CudaStream::Set(Mark mark) {
  const Driver::Scope scope(driver_, context_);
  return driver_->event_record(marks_[mark], stream_) == 0;
}

bool CudaStream::Reached(Mark mark) {
  const Driver::Scope scope(driver_, context_);
  return driver_->event_query(marks_[mark]) == 0;
}

std::chrono::nanoseconds CudaStream::Between(Mark begin, Mark end) {
  const Driver::Scope scope(driver_, context_);
  float milliseconds = 0;
  const bool known = driver_->event_elapsed(&milliseconds, marks_[begin], marks_[end]) == 0;
  return std::chrono::nanoseconds(known ? static_cast<int64_t>(milliseconds * 1e6f) : -1);
}

bool CudaStream::Read(void* to, const void* from, size_t bytes) {
  const Driver::Scope scope(driver_, context_);
  return driver_->copy_to_host(to, reinterpret_cast<uintptr_t>(from), bytes) == 0;
}

bool CudaStream::BeginRecording() {
  const Driver::Scope scope(driver_, context_);
  constexpr int kRelaxed = 2;  // ggml's backend and libmoert may allocate meanwhile
  return driver_->begin_capture(stream_, kRelaxed) == 0;
}

void* CudaStream::EndRecording() {
  const Driver::Scope scope(driver_, context_);
  void *graph = nullptr, *recording = nullptr;
  if (driver_->end_capture(stream_, &graph) != 0 || graph == nullptr) return nullptr;
  if (driver_->graph_instantiate(&recording, graph, 0) != 0) recording = nullptr;
  driver_->graph_destroy(graph);
  return recording;
}

bool CudaStream::Replay(void* recording) {
  const Driver::Scope scope(driver_, context_);
  return driver_->graph_launch(recording, stream_) == 0;
}

void CudaStream::Drop(void* recording) {
  const Driver::Scope scope(driver_, context_);
  driver_->recording_destroy(recording);
}

bool CudaStream::Synchronize() {
  const Driver::Scope scope(driver_, context_);
  return driver_->stream_synchronize(stream_) == 0;
}

bool CudaStream::SynchronizeDevice() {
  const Driver::Scope scope(driver_, context_);
  return driver_->synchronize_context() == 0;
}

}  // namespace moert_ggml
