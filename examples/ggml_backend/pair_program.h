// A layer call on the CPU, pair by pair: the part of llama.cpp's graph from the experts' input to
// their down product. Rows of weights are multiplied by RowProduct, or by the kernels of ggml's CPU
// backend for formats that RowProduct does not know.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_PAIR_PROGRAM_H_
#define MOERT_EXAMPLES_GGML_BACKEND_PAIR_PROGRAM_H_

#include <ggml-cpu.h>
#include <moert.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace moert_ggml {

struct LayerCall;
struct RowProduct;

/// ggml's CPU kernels, by format. They live in the CPU backend that the host has loaded.
class CpuKernels {
 public:
  /// False: they cannot be found.
  bool Find(ggml_backend_dev_t cpu);
  const ggml_type_traits_cpu* Of(ggml_type type) const { return traits_(type); }

 private:
  const ggml_type_traits_cpu* (*traits_)(ggml_type type) = nullptr;
};

/// Immutable.
class PairProgram {
 public:
  /// A key that differs between calls that need different programs.
  static std::vector<int64_t> KeyOf(const LayerCall& call);
  /// Null: the call has a node that this class does not know.
  static std::shared_ptr<const PairProgram> Make(const LayerCall& call, const CpuKernels& kernels);

  const std::vector<int64_t>& key() const { return key_; }

  /// Memory that runs reuse; it grows to the largest run.
  struct Memory {
    std::vector<std::vector<float>> rows;     // of each step, [pairs, width]
    std::vector<std::vector<char>> operands;  // of each step that is a product
  };
  /// Computes all pairs into job.out.
  void Run(const moert_cpu_job& job, Memory* memory) const;

 private:
  // Columns [first, first + width) of a step's rows; step -1: the input of the experts.
  struct Value {
    int step = -1;
    int64_t first = 0, width = 0;
  };
  struct Step {
    ggml_op op = GGML_OP_NONE;
    int kind = 0;  // of a unary operation, or of a GLU
    bool swapped = false;
    float number[2] = {};
    Value a, b;
    bool binary = false;
    int64_t width = 0;
    int level = 0;  // products in front of it, itself among them
    // For products.
    int part = -1;
    size_t row_bytes = 0;
    const RowProduct* product = nullptr;  // null: ggml's vec_dot
    ggml_vec_dot_t vec_dot = nullptr;
    ggml_from_float_t pack = nullptr;  // null: fp32 as it is
    size_t packed_bytes = 0;           // of one row of the input
    // Added or multiplied by expert: a bias, [experts, width], or a factor, [experts].
    std::vector<float> per_expert;
  };
  class Runner;

  bool Add(const LayerCall& call, const ggml_tensor* node, const CpuKernels& kernels);
  static bool UseGgml(const CpuKernels& kernels, ggml_type type, int64_t columns, Step* step);
  bool AddProduct(const LayerCall& call, const ggml_tensor* node, const CpuKernels& kernels);
  // Expresses a tensor by steps. False: the tensor is not part of the call.
  bool Find(const LayerCall& call, const ggml_tensor* tensor, Value* value) const;

  std::vector<int64_t> key_;
  std::vector<Step> steps_;
  std::vector<const ggml_tensor*> nodes_;  // of the steps; while it is made
  const ggml_tensor* input_ = nullptr;     // likewise
  int levels_ = 0;
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_PAIR_PROGRAM_H_
