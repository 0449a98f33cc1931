#include "cpu_product.h"

#include <exception>

#include "layer_call.h"

namespace moert_ggml {

std::shared_ptr<CpuProduct> CpuProduct::Create(size_t layers) {
  auto product = std::make_shared<CpuProduct>();
  product->layers_.resize(layers);
  const bool found = product->kernels_.Find(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
  return found ? product : nullptr;
}

bool CpuProduct::Learn(const LayerCall& call) {
  std::vector<int64_t> key = PairProgram::KeyOf(call);
  const std::lock_guard<std::mutex> lock(mutex_);
  Layer& layer = layers_[static_cast<size_t>(call.experts->layer)];
  if (key != layer.key) {
    layer.program = PairProgram::Make(call, kernels_);
    layer.key = std::move(key);
  }
  return layer.program != nullptr;
}

moert_code CpuProduct::Multiply(const moert_cpu_job& job, moert_failure* failure) {
  std::shared_ptr<const PairProgram> program;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    program = layers_[static_cast<size_t>(job.layer)].program;
  }
  if (program == nullptr) {
    moert_failure_set(failure, "no call of this layer has said what is computed");
    return MOERT_INTERNAL;
  }
  const std::lock_guard<std::mutex> running(running_);
  try {
    program->Run(job, &memory_);
    return MOERT_OK;
  } catch (const std::exception& e) {  // no memory
    moert_failure_set(failure, e.what());
    return MOERT_RESOURCE_EXHAUSTED;
  }
}

}  // namespace moert_ggml
