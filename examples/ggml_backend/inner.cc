#include "inner.h"

#include <cstring>

namespace moert_ggml {

std::unique_ptr<Inner> Inner::Create(ggml_backend_dev_t device) {
  ggml_backend_t backend = device == nullptr ? nullptr : ggml_backend_dev_init(device, nullptr);
  if (backend == nullptr) return nullptr;
  std::unique_ptr<Inner> inner(new Inner(backend));
  inner->own_threads_ = inner->StartsThreads();
  return inner;
}

std::unique_ptr<Inner> Inner::Borrow(ggml_backend_t backend, ggml_backend_buffer_type_t type,
                                     ggml_backend_buffer_t slots) {
  std::unique_ptr<Inner> inner(new Inner(backend));
  inner->buffer_type_ = type;
  inner->slot_buffer_ = slots;
  inner->borrowed_ = true;
  return inner;
}

Inner::~Inner() {
  if (!borrowed_) ggml_backend_free(backend_);
  if (pool_ != nullptr) Find<void(ggml_threadpool_t)>("ggml_threadpool_free")(pool_);
}

bool Inner::StartsThreads() const {
  if (Find<ggml_threadpool_t(ggml_threadpool_params*)>("ggml_threadpool_new") == nullptr) {
    return false;
  }
  auto* features = Find<ggml_backend_feature*(ggml_backend_reg_t)>("ggml_backend_get_features");
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_));
  for (auto* f = features == nullptr ? nullptr : features(registry); f && f->name; ++f) {
    if (std::strcmp(f->name, "OPENMP") == 0) return false;
  }
  return true;
}

template <typename Function>
Function* Inner::Find(const char* name) const {
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_));
  return reinterpret_cast<Function*>(ggml_backend_reg_get_proc_address(registry, name));
}

ggml_status Inner::Compute(ggml_cgraph* graph) {
  return ggml_backend_graph_compute(backend_, graph);
}

void Inner::SetThreads(int threads) {
  if (threads == threads_) return;
  threads_ = threads;
  auto* set = Find<void(ggml_backend_t, int)>("ggml_backend_set_n_threads");
  if (set == nullptr) return;  // a GPU
  set(backend_, threads);
  auto* use = Find<void(ggml_backend_t, ggml_threadpool_t)>("ggml_backend_cpu_set_threadpool");
  if (!own_threads_ || use == nullptr) return;
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  params.poll = 0;  // the cores are the host's own threads' while these wait
  ggml_threadpool_t pool =
      Find<ggml_threadpool_t(ggml_threadpool_params*)>("ggml_threadpool_new")(&params);
  use(backend_, pool);
  if (pool_ != nullptr) Find<void(ggml_threadpool_t)>("ggml_threadpool_free")(pool_);
  pool_ = pool;
}

}  // namespace moert_ggml
