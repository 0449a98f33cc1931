#include "whole_device.h"

#include <ggml-backend-impl.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "buffers.h"
#include "claims.h"
#include "gpu.h"
#include "gpu_runner.h"
#include "models.h"
#include "options.h"
#include "worker.h"

namespace moert_ggml {
namespace {

ggml_backend_device whole = {};
ggml_backend_dev_t cuda = nullptr;
// CUDA's own type of memory at an address of ours: llama.cpp counts memory by the type's device.
ggml_backend_buffer_type memory = {};
ggml_backend_buffer_type_t mapped_type = nullptr;

// ---- The backend: one for each context of llama.cpp.

ggml_backend_t CudaOf(ggml_backend_t backend) {
  return static_cast<GpuRunner*>(WorkerOf(backend))->cuda();
}

const char* BackendName(ggml_backend_t /*backend*/) { return "MOERT0"; }

void Synchronize(ggml_backend_t backend) { ggml_backend_synchronize(CudaOf(backend)); }

bool CopyAsync(ggml_backend_t from, ggml_backend_t to, const ggml_tensor* tensor,
               ggml_tensor* copy) {
  if (from->device == &whole) from = CudaOf(from);
  if (to->device == &whole) to = CudaOf(to);
  return to->iface.cpy_tensor_async != nullptr &&
         to->iface.cpy_tensor_async(from, to, tensor, copy);
}

void Record(ggml_backend_t backend, ggml_backend_event_t event) {
  ggml_backend_event_record(event, CudaOf(backend));
}
void Wait(ggml_backend_t backend, ggml_backend_event_t event) {
  ggml_backend_event_wait(CudaOf(backend), event);
}

void Optimize(ggml_backend_t backend, ggml_cgraph* graph,
              ggml_backend_graph_optimize_params* parameters) {
  ggml_backend_t inner = CudaOf(backend);
  if (inner->iface.graph_optimize != nullptr) {
    inner->iface.graph_optimize(inner, graph, parameters);
  }
}

ggml_guid_t Guid() {
  static ggml_guid guid = {'l', 'i', 'b', 'm', 'o', 'e', 'r', 't',
                           '-', 'w', 'h', 'o', 'l', 'e', '-', '0'};
  return &guid;
}

ggml_backend_t InitBackend(ggml_backend_dev_t device, const char* /*parameters*/) {
  try {
    Gpu* const used = UsedGpu();
    if (used != nullptr && !OpenModelsOn(used)) Gpu::GiveUp();
    Gpu* const gpu = Gpu::Device();  // computes all but the experts then
    if (gpu == nullptr) return nullptr;
    auto runner = std::make_unique<GpuRunner>(gpu);
    if (!runner->TakeWholeGraphs()) return nullptr;
    auto backend = MakeBackend(device, Guid(), BackendName, std::move(runner));
    backend->iface.cpy_tensor_async = CopyAsync;
    backend->iface.synchronize = Synchronize;
    backend->iface.event_record = Record;
    backend->iface.event_wait = Wait;
    backend->iface.graph_optimize = Optimize;
    return backend.release();
  } catch (const std::exception& e) {
    Say("%s", e.what());
    return nullptr;
  }
}

// ---- The device.

const char* DeviceName(ggml_backend_dev_t /*device*/) { return "MOERT0"; }
const char* DeviceDescription(ggml_backend_dev_t /*device*/) {
  return ggml_backend_dev_description(cuda);
}
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t /*device*/) {
  return ggml_backend_dev_type(cuda);
}
void DeviceMemory(ggml_backend_dev_t /*device*/, size_t* free, size_t* total) {
  ggml_backend_dev_memory(cuda, free, total);
}
void DeviceProperties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  ggml_backend_dev_get_props(cuda, properties);
  properties->name = DeviceName(device);
  properties->caps.async = false;  // tensors are not set and read asynchronously
}
ggml_backend_buffer_type_t BufferType(ggml_backend_dev_t /*device*/) { return &memory; }
ggml_backend_buffer_type_t HostType(ggml_backend_dev_t /*device*/) {
  return ggml_backend_dev_host_buffer_type(cuda);
}

// Whether the node reads memory of llama.cpp's mapping, which CUDA does not reach.
bool ReadsMapping(const ggml_tensor* node) {
  return std::any_of(node->src, node->src + GGML_MAX_SRC, [](const ggml_tensor* source) {
    if (source == nullptr) return false;
    return IsOurs(source->view_src != nullptr ? source->view_src->buffer : source->buffer);
  });
}

bool SupportsOp(ggml_backend_dev_t /*device*/, const ggml_tensor* node) {
  if (!ReadsMapping(node)) return ggml_backend_dev_supports_op(cuda, node);
  return UsedGpu() != nullptr && ClaimsForGpu(node, cuda);
}

// If experts are not on the GPU, the accelerator computes them in RAM, and its results lie in
// memory of the same type as llama.cpp's mapping.
bool SupportsType(ggml_backend_dev_t /*device*/, ggml_backend_buffer_type_t type) {
  if (type == mapped_type) return UsedGpu() != nullptr;
  return type == &memory || type == ggml_backend_dev_buffer_type(cuda);
}

bool Offloads(ggml_backend_dev_t /*device*/, const ggml_tensor* node) {
  return !ReadsMapping(node) && ggml_backend_dev_offload_op(cuda, node);
}

ggml_backend_event_t NewEvent(ggml_backend_dev_t /*device*/) {
  return ggml_backend_event_new(cuda);
}

}  // namespace

ggml_backend_dev_t MakeWholeDevice(ggml_backend_reg_t registry, ggml_backend_buffer_type_t mapped) {
  ggml_backend_reg_t of_cuda = ggml_backend_reg_by_name("CUDA");
  if (of_cuda == nullptr || ggml_backend_reg_dev_count(of_cuda) == 0) return nullptr;
  cuda = ggml_backend_reg_dev_get(of_cuda, 0);
  ggml_backend_dev_props properties;
  ggml_backend_dev_get_props(cuda, &properties);
  if (properties.device_id == nullptr) return nullptr;
  mapped_type = mapped;
  memory = *ggml_backend_dev_buffer_type(cuda);
  memory.device = &whole;
  whole.iface.get_name = DeviceName;
  whole.iface.get_description = DeviceDescription;
  whole.iface.get_memory = DeviceMemory;
  whole.iface.get_type = DeviceType;
  whole.iface.get_props = DeviceProperties;
  whole.iface.init_backend = InitBackend;
  whole.iface.get_buffer_type = BufferType;
  whole.iface.get_host_buffer_type = HostType;
  whole.iface.supports_op = SupportsOp;
  whole.iface.supports_buft = SupportsType;
  whole.iface.offload_op = Offloads;
  whole.iface.event_new = NewEvent;  // an event of CUDA's, which frees and awaits it
  whole.reg = registry;
  return &whole;
}

}  // namespace moert_ggml
