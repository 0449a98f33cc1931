// The product that libmoert asks for when a GPU shares misses with the CPU. For each layer it runs
// the program that was learnt from the layer's last call on the GPU.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_CPU_PRODUCT_H_
#define MOERT_EXAMPLES_GGML_BACKEND_CPU_PRODUCT_H_

#include <memory>
#include <mutex>
#include <vector>

#include "pair_program.h"

namespace moert_ggml {

class CpuProduct {
 public:
  /// Null: ggml's CPU kernels cannot be found.
  static std::shared_ptr<CpuProduct> Create(size_t layers);

  /// Learns a call that may be shared. False: it has a node that the CPU cannot compute here, and
  /// must not be shared. Thread-safe.
  bool Learn(const LayerCall& call);
  /// Computes the job of a learnt call. Thread-safe: one job at a time.
  moert_code Multiply(const moert_cpu_job& job, moert_failure* failure);

 private:
  struct Layer {
    std::vector<int64_t> key;
    std::shared_ptr<const PairProgram> program;  // null: not known
  };

  CpuKernels kernels_;
  std::mutex mutex_;
  std::vector<Layer> layers_;
  std::mutex running_;
  PairProgram::Memory memory_;  // of the job
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_CPU_PRODUCT_H_
