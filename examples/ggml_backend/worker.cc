#include "worker.h"

#include <exception>
#include <utility>

#include "options.h"

namespace moert_ggml {
namespace {

void Free(ggml_backend_t backend) {
  delete WorkerOf(backend);
  delete backend;
}

ggml_status Compute(ggml_backend_t backend, ggml_cgraph* graph) {
  try {
    return WorkerOf(backend)->Compute(graph);
  } catch (const std::exception& e) {  // no memory
    Say("%s", e.what());
    return GGML_STATUS_ALLOC_FAILED;
  }
}

}  // namespace

Worker* WorkerOf(ggml_backend_t backend) { return static_cast<Worker*>(backend->context); }

std::unique_ptr<ggml_backend> MakeBackend(ggml_backend_dev_t device, ggml_guid_t guid,
                                          const char* (*name)(ggml_backend_t),
                                          std::unique_ptr<Worker> worker) {
  auto backend = std::make_unique<ggml_backend>();
  backend->guid = guid;
  backend->iface.get_name = name;
  backend->iface.free = Free;
  backend->iface.graph_compute = Compute;
  backend->device = device;
  backend->context = worker.release();
  return backend;
}

}  // namespace moert_ggml
