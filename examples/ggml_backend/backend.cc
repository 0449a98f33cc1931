// libggml-moert.so: a backend that an unmodified llama.cpp loads at run time. Its device is an
// accelerator beside the CPU: llama.cpp gives it the expert tensors that are to stay in RAM, and
// the products over them. The experts themselves live in libmoert, under a budget.
//
//   GGML_BACKEND_PATH=libggml-moert.so MOERT_BUDGET=8GiB llama-cli -m model.gguf -ot exps=CPU
//
// The tables below are ggml's interface of a backend (ggml-backend-impl.h); what they do is in
// buffers.cc, claims.cc and runner.cc.
#include <ggml-backend-impl.h>
#include <ggml-backend.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "buffers.h"
#include "claims.h"
#include "gpu.h"
#include "gpu_runner.h"
#include "inner.h"
#include "models.h"
#include "options.h"
#include "runner.h"
#include "whole_device.h"
#include "worker.h"

namespace moert_ggml {
namespace {

ggml_backend_buffer_type_t buffer_type = nullptr;

// ---- The backend: one for each context of llama.cpp.

const char* BackendName(ggml_backend_t /*backend*/) { return "MOERT"; }

void SetThreads(ggml_backend_t backend, int threads) { WorkerOf(backend)->SetThreads(threads); }

void Synchronize(ggml_backend_t backend) { WorkerOf(backend)->Synchronize(); }

void Plan(ggml_backend_t backend, ggml_cgraph* graph,
          ggml_backend_graph_optimize_params* /*parameters*/) {
  try {
    WorkerOf(backend)->Plan(graph);
  } catch (const std::exception& e) {  // no memory
    Say("%s", e.what());
  }
}

bool BeginCopy(ggml_backend_t from, ggml_backend_t to, const ggml_tensor* tensor,
               ggml_tensor* copy) {
  return WorkerOf(to)->BeginCopy(from, tensor, copy);
}

ggml_guid_t Guid() {
  static ggml_guid guid = {'l', 'i', 'b', 'm', 'o', 'e', 'r', 't',
                           '-', 'e', 'x', 'p', 'e', 'r', 't', 's'};
  return &guid;
}

// ---- The device.

const char* DeviceName(ggml_backend_dev_t /*device*/) { return "MOERT"; }
const char* DeviceDescription(ggml_backend_dev_t /*device*/) { return "experts kept by libmoert"; }
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t /*device*/) {
  return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
// Reports no memory: llama.cpp should plan with none of it.
void DeviceMemory(ggml_backend_dev_t /*device*/, size_t* free, size_t* total) {
  *free = 0;
  *total = 0;
}

void DeviceProperties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = DeviceName(device);
  properties->description = DeviceDescription(device);
  properties->type = DeviceType(device);
  properties->caps.buffer_from_host_ptr = true;
}

ggml_backend_dev_t InnerDevice() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

// The scheduler's view of a context that computes on the GPU: the same device, with CUDA's memory.
ggml_backend_device gpu_device = {};

std::unique_ptr<Worker> MakeWorker(Gpu* gpu) {
  if (gpu != nullptr) return std::make_unique<GpuRunner>(gpu);
  std::unique_ptr<Inner> inner = Inner::Create(InnerDevice());
  return inner == nullptr ? nullptr : std::make_unique<Runner>(std::move(inner));
}

ggml_backend_t InitBackend(ggml_backend_dev_t device, const char* /*parameters*/) {
  try {
    Gpu* gpu = UsedGpu();
    if (gpu != nullptr && !OpenModelsOn(gpu)) {
      Gpu::GiveUp();
      gpu = nullptr;
    }
    std::unique_ptr<Worker> worker = MakeWorker(gpu);
    if (worker == nullptr) return nullptr;
    auto backend = MakeBackend(device, Guid(), BackendName, std::move(worker));
    if (gpu != nullptr) {
      backend->iface.cpy_tensor_async = BeginCopy;
      backend->iface.synchronize = Synchronize;
      backend->iface.graph_optimize = Plan;
      gpu_device.context = gpu;
      backend->device = &gpu_device;
    }
    return backend.release();
  } catch (const std::exception& e) {
    Say("%s", e.what());
    return nullptr;
  }
}

ggml_backend_buffer_type_t DeviceBufferType(ggml_backend_dev_t /*device*/) { return buffer_type; }

ggml_backend_buffer_t BufferFromHostPointer(ggml_backend_dev_t /*device*/, void* address,
                                            size_t size, size_t /*max_tensor_size*/) {
  try {
    return MapBuffer(address, size);
  } catch (const std::exception& e) {
    Say("%s", e.what());
    return nullptr;
  }
}

bool SupportsOp(ggml_backend_dev_t /*device*/, const ggml_tensor* node) {
  return Claims(node, InnerDevice());
}

bool SupportsBufferType(ggml_backend_dev_t /*device*/, ggml_backend_buffer_type_t type) {
  return ggml_backend_buft_is_host(type);
}

Gpu* GpuOf(ggml_backend_dev_t device) { return static_cast<Gpu*>(device->context); }

ggml_backend_buffer_type_t GpuBufferType(ggml_backend_dev_t device) {
  return GpuOf(device)->compute_type();
}

bool GpuSupportsOp(ggml_backend_dev_t device, const ggml_tensor* node) {
  return ClaimsForGpu(node, GpuOf(device)->device());
}

// CUDA's own type is not supported: the scheduler then asks this backend to copy inputs. That costs
// less than the wait for CUDA with which the scheduler begins parts without inputs.
bool GpuSupportsBufferType(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
  return type == buffer_type || type == GpuOf(device)->compute_type();
}

// ---- What ggml_backend_init returns.

const char* RegistryName(ggml_backend_reg_t /*registry*/) { return "MOERT"; }
ggml_backend_dev_t whole_device = nullptr;  // null: none is offered

size_t DeviceCount(ggml_backend_reg_t /*registry*/) { return whole_device == nullptr ? 1 : 2; }
ggml_backend_dev_t GetDevice(ggml_backend_reg_t registry, size_t index) {
  return index == 1 ? whole_device : static_cast<ggml_backend_dev_t>(registry->context);
}
void* FindFunction(ggml_backend_reg_t /*registry*/, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) {
    return reinterpret_cast<void*>(&SetThreads);
  }
  return nullptr;
}

ggml_backend_reg_t MakeRegistry(const Options& options) {
  static ggml_backend_device device = {};
  static ggml_backend_reg registry = {};
  device.iface.get_name = DeviceName;
  device.iface.get_description = DeviceDescription;
  device.iface.get_memory = DeviceMemory;
  device.iface.get_type = DeviceType;
  device.iface.get_props = DeviceProperties;
  device.iface.init_backend = InitBackend;
  device.iface.get_buffer_type = DeviceBufferType;
  device.iface.buffer_from_host_ptr = BufferFromHostPointer;
  device.iface.supports_op = SupportsOp;
  device.iface.supports_buft = SupportsBufferType;
  device.reg = &registry;
  gpu_device = device;
  gpu_device.iface.get_buffer_type = GpuBufferType;
  gpu_device.iface.supports_op = GpuSupportsOp;
  gpu_device.iface.supports_buft = GpuSupportsBufferType;
  registry.api_version = GGML_BACKEND_API_VERSION;
  registry.iface.get_name = RegistryName;
  registry.iface.get_device_count = DeviceCount;
  registry.iface.get_device = GetDevice;
  registry.iface.get_proc_address = FindFunction;
  registry.context = &device;
  buffer_type = MakeBufferType(&device, options);
  if (options.gpu && options.device) whole_device = MakeWholeDevice(&registry, buffer_type);
  return &registry;
}

// ggml changes the tables above between minor versions without a change of its API version.
bool SameMinorVersion(const std::string& a, const std::string& b) {
  const auto minor = [](const std::string& v) { return v.substr(0, v.find('.', v.find('.') + 1)); };
  return minor(a) == minor(b);
}

}  // namespace
}  // namespace moert_ggml

/// The entry point that the host calls. Null: the host continues without this backend.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
  using namespace moert_ggml;
  try {
    if (!SameMinorVersion(ggml_version(), MOERT_GGML_VERSION)) {
      Say("built for ggml %s, this is ggml %s: build the plug-in against this llama.cpp's headers. "
          "Experts are not cached",
          MOERT_GGML_VERSION, ggml_version());
      return nullptr;
    }
    Options options;
    std::string error;
    if (!ReadOptions(&options, &error)) {
      Say("%s. Experts are not cached", error.c_str());
      return nullptr;
    }
    return options.disabled ? nullptr : MakeRegistry(options);
  } catch (const std::exception&) {
    return nullptr;
  }
}
