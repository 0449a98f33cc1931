// The product that libmoert asks for where a GPU shares misses with the CPU: of each layer the
// program that its last call on the GPU had.
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

  /// A call that may be shared comes. False: it has a node that the CPU does not know here, and
  /// must not be. Thread-safe.
  bool Learn(const LayerCall& call);
  /// The job of a call that was learnt. Thread-safe: one job at a time.
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
