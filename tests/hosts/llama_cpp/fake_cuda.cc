// Stands in for ggml's CUDA backend and for CUDA's driver: the CPU computes, in the host's memory,
// when it is asked to. It decides who gets which part of a graph, and in which memory. built as
// libggml-cuda.so, loaded by llama.cpp; and as libcuda.so.1, loaded by the plug-in
#include <ggml-backend-impl.h>
#include <ggml-backend.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

// ---- The driver, as far as the plug-in knows it.

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
EXPORT int cuDeviceGetAttribute(int* value, int, int) { return *value = 8, 0; }
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) { return *context = context, 0; }
EXPORT int cuCtxPushCurrent_v2(void*) { return 0; }
EXPORT int cuCtxPopCurrent_v2(void** context) { return *context = nullptr, 0; }
EXPORT int cuCtxSynchronize() { return 0; }
EXPORT int cuStreamCreate(void** stream, unsigned) { return *stream = stream, 0; }
EXPORT int cuStreamDestroy_v2(void*) { return 0; }
EXPORT int cuStreamSynchronize(void*) { return 0; }
EXPORT int cuStreamQuery(void*) { return 0; }
EXPORT int cuMemcpy2DAsync_v2(const void*, void*) { return 1; }  // not in the host's memory
EXPORT int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) {
  return std::memcpy(to, from, bytes), 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void*) {
  return std::memcpy(to, from, bytes), 0;
}
EXPORT int cuEventCreate(void** event, unsigned) { return *event = event, 0; }
EXPORT int cuEventDestroy_v2(void*) { return 0; }
EXPORT int cuEventQuery(void*) { return 0; }
// Copies between two marks take FAKE_GPU_COPY_MS, else no time.
EXPORT int cuEventElapsedTime(float* milliseconds, void*, void*) {
  const char* text = std::getenv("FAKE_GPU_COPY_MS");
  return *milliseconds = text == nullptr ? 0 : std::strtof(text, nullptr), 0;
}
// The CPU cannot record what it would do.
EXPORT int cuStreamBeginCapture_v2(void*, int) { return 1; }
EXPORT int cuStreamEndCapture(void*, void** graph) { return *graph = nullptr, 1; }
EXPORT int cuGraphInstantiateWithFlags(void**, void*, unsigned long long) { return 1; }
EXPORT int cuGraphDestroy(void*) { return 1; }
EXPORT int cuGraphLaunch(void*, void*) { return 1; }
EXPORT int cuGraphExecDestroy(void*) { return 1; }
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
EXPORT int cuEventRecord(void*, void*) { return 0; }

namespace {

ggml_backend_device device = {};
ggml_backend_reg registry = {};
ggml_backend_buffer_type type = {};

ggml_backend_dev_t Cpu() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

// ---- Memory: the CPU's, under another name.

const char* TypeName(ggml_backend_buffer_type_t) { return "CUDA0"; }
ggml_backend_buffer_t Allocate(ggml_backend_buffer_type_t of, size_t size) {
  const char* refused = std::getenv("FAKE_GPU_REFUSES");  // buffers of exactly so many bytes
  if (refused != nullptr && std::strtoull(refused, nullptr, 10) == size) return nullptr;
  ggml_backend_buffer_t buffer =
      ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
  if (buffer != nullptr) buffer->buft = of;
  // Bytes that were never written are no numbers.
  if (buffer != nullptr) std::memset(ggml_backend_buffer_get_base(buffer), 0xff, size);
  return buffer;
}
size_t Alignment(ggml_backend_buffer_type_t) {
  return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}
size_t AllocSize(ggml_backend_buffer_type_t, const ggml_tensor* tensor) {
  const int64_t over = tensor->ne[0] % 512;
  if (!ggml_is_quantized(tensor->type) || over == 0) return ggml_nbytes(tensor);
  return ggml_nbytes(tensor) + ggml_row_size(tensor->type, 512 - over);
}
bool IsHost(ggml_backend_buffer_type_t) { return true; }

// ---- The backend.

const char* BackendName(ggml_backend_t) { return "CUDA0"; }
ggml_backend_t Inner(ggml_backend_t backend) {
  return static_cast<ggml_backend_t>(backend->context);
}
void FreeBackend(ggml_backend_t backend) {
  ggml_backend_free(Inner(backend));
  delete backend;
}
ggml_status Compute(ggml_backend_t backend, ggml_cgraph* graph) {
  return ggml_backend_graph_compute(Inner(backend), graph);
}
void Synchronize(ggml_backend_t) {}
bool CopyAsync(ggml_backend_t, ggml_backend_t, const ggml_tensor* from, ggml_tensor* to) {
  std::memcpy(to->data, from->data, ggml_nbytes(from));
  return true;
}
void Record(ggml_backend_t, ggml_backend_event_t) {}
void Wait(ggml_backend_t, ggml_backend_event_t) {}
ggml_guid_t Guid() {
  static ggml_guid guid = {'f', 'a', 'k', 'e'};
  return &guid;
}

// ---- The device.

const char* DeviceName(ggml_backend_dev_t) { return "CUDA0"; }
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
// FAKE_GPU_BYTES, or what is in the file of that name.
void Memory(ggml_backend_dev_t, size_t* free, size_t* total) {
  const char* bytes = std::getenv("FAKE_GPU_BYTES");
  std::string text = bytes == nullptr ? "8589934592" : bytes;
  if (text[0] == '/') std::getline(std::ifstream(text), text);
  *free = *total = std::strtoull(text.c_str(), nullptr, 10);
}
void Properties(ggml_backend_dev_t of, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = properties->description = DeviceName(of);
  properties->type = DeviceType(of);
  properties->device_id = "0000:01:00.0";
  Memory(of, &properties->memory_free, &properties->memory_total);
  properties->caps.async = properties->caps.events = properties->caps.mmap_support = true;
}
ggml_backend_t InitBackend(ggml_backend_dev_t of, const char*) {
  auto* backend = new ggml_backend{};
  backend->guid = Guid();
  backend->iface.get_name = BackendName;
  backend->iface.free = FreeBackend;
  backend->iface.cpy_tensor_async = CopyAsync;
  backend->iface.synchronize = Synchronize;
  backend->iface.graph_compute = Compute;
  backend->iface.event_record = Record;
  backend->iface.event_wait = Wait;
  backend->device = of;
  backend->context = ggml_backend_dev_init(Cpu(), nullptr);
  return backend;
}
ggml_backend_buffer_type_t BufferType(ggml_backend_dev_t) { return &type; }
bool SupportsOp(ggml_backend_dev_t, const ggml_tensor* node) {
  return ggml_backend_dev_supports_op(Cpu(), node);
}
// As CUDA does: by the function that names a type.
bool SupportsType(ggml_backend_dev_t, ggml_backend_buffer_type_t of) {
  return of->iface.get_name == TypeName;
}
ggml_backend_event_t NewEvent(ggml_backend_dev_t of) { return new ggml_backend_event{of, nullptr}; }
void FreeEvent(ggml_backend_dev_t, ggml_backend_event_t event) { delete event; }
void SynchronizeEvent(ggml_backend_dev_t, ggml_backend_event_t) {}

const char* RegistryName(ggml_backend_reg_t) { return "CUDA"; }
size_t DeviceCount(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t GetDevice(ggml_backend_reg_t, size_t) { return &device; }
void* FindFunction(ggml_backend_reg_t, const char*) { return nullptr; }

}  // namespace

EXPORT ggml_backend_reg_t ggml_backend_init() {
  type.iface.get_name = TypeName;
  type.iface.alloc_buffer = Allocate;
  type.iface.get_alignment = Alignment;
  type.iface.get_alloc_size = AllocSize;
  type.iface.is_host = IsHost;
  type.device = &device;
  device.iface.get_name = DeviceName;
  device.iface.get_description = DeviceName;
  device.iface.get_memory = Memory;
  device.iface.get_type = DeviceType;
  device.iface.get_props = Properties;
  device.iface.init_backend = InitBackend;
  device.iface.get_buffer_type = BufferType;
  device.iface.supports_op = SupportsOp;
  device.iface.supports_buft = SupportsType;
  device.iface.event_new = NewEvent;
  device.iface.event_free = FreeEvent;
  device.iface.event_synchronize = SynchronizeEvent;
  device.reg = &registry;
  registry.api_version = GGML_BACKEND_API_VERSION;
  registry.iface.get_name = RegistryName;
  registry.iface.get_device_count = DeviceCount;
  registry.iface.get_device = GetDevice;
  registry.iface.get_proc_address = FindFunction;
  return &registry;
}
