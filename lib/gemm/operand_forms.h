// In which forms the operands of a call's products are packed, and how much room they take.
#ifndef MOERT_LIB_GEMM_OPERAND_FORMS_H_
#define MOERT_LIB_GEMM_OPERAND_FORMS_H_

#include <algorithm>
#include <cstdint>

#include "base/checked_math.h"
#include "gemm/block_product.h"
#include "gemm/jobs.h"
#include "kernels/cpu/kernel_set.h"
#include "moert/mixed_group_gemm.h"

namespace moert::gemm {

using kernels::KernelSet;
using kernels::kOperandKinds;

// An input is packed as it is and, for experts stored in that domain, after the Hadamard
// transform: form kind, and form kOperandKinds + kind.
constexpr int kInputForms = 2 * kOperandKinds;
inline int InputForm(const Scheme& scheme, bool hadamard, ActivationNumerics numerics) {
  return static_cast<int>(kernels::OperandFor(scheme, numerics)) + (hadamard ? kOperandKinds : 0);
}

// The operand forms in use.
struct Forms {
  bool x[kInputForms] = {};
  bool h[kOperandKinds] = {};
  bool keeps_h = false;  // whether some h is kept in fp32 before it is packed
  bool copies_x = false;  // whether some x is transformed or rounded before it is packed
  bool apart = false;  // whether some gate and up are two products

  void Add(const ExpertFormat& format, ActivationNumerics numerics) {
    x[InputForm(format.gate, format.hadamard, numerics)] = true;
    x[InputForm(format.up, format.hadamard, numerics)] = true;
    const OperandKind down = kernels::OperandFor(format.down, numerics);
    h[static_cast<int>(down)] = true;
    keeps_h |= format.hadamard || down != OperandKind::kPlain;
    const auto rounds = [numerics](const Scheme& scheme) {
      return kernels::OperandFor(scheme, numerics) == OperandKind::kF8Group;
    };
    copies_x |= format.hadamard || rounds(format.gate) || rounds(format.up);
    apart |= format.gate != format.up;
  }
};
static_assert(static_cast<int>(OperandKind::kPlain) == 0);

// Bytes of the parts of the workspace; all are multiples of 64 or of a float.
class OperandSizes {
 public:
  OperandSizes(const KernelSet& set, ActivationNumerics numerics, int threads)
      : set_(set), numerics_(numerics), threads_(threads) {}

  OperandKernels Kernels(int kind) const {
    return set_.For(static_cast<OperandKind>(kind), numerics_);
  }

  // Bytes of one packed row. An odd number of cache lines: rows a power of two apart would compete
  // for
  // the same few sets.
  int64_t OperandBytes(int kind, int64_t channels) const;
  // Bytes of one packed row of h, in the widest form.
  int64_t WidestH(const Forms& forms, int64_t channels) const;

  // Room for one row of x a thread that is transformed or rounded before it is packed; floats.
  static int64_t TransformStride(int64_t hidden) { return RoundUp(hidden, 16); }
  int64_t TransformBytes(int64_t hidden, const Forms& forms) const;

  // Room for the rows of x of a job, a thread: of gate and up, and of up when it is a product
  // apart.
  static int64_t GatherRows(int64_t slots) { return std::min(slots, kJobColumns); }
  int64_t WidestGathered(const Forms& forms, int64_t hidden) const;
  int64_t GatherBytes(int64_t slots, int64_t hidden, const Forms& forms) const;

  // Weights that a thread keeps as tiles while a job has more columns than a kernel takes at once:
  // of one row block, and of all. No room where no expert can have so many tokens.
  int64_t KeptBytes(int64_t slots, int64_t hidden, int64_t widest, const Forms& forms) const;
  int64_t RoomForKept(int64_t slots, int64_t hidden, int64_t widest, const Forms& forms) const {
    return threads_ * kernels::kMaxBlocks * KeptBytes(slots, hidden, widest, forms);
  }

  // No more problems than slots: empty ones are skipped.
  static int64_t PlanBytes(int64_t slots) {
    return RoundUp(slots * static_cast<int64_t>(sizeof(Plan)), 64);
  }

  // All of it. `slots`: pairs of token and expert; `widest`: intermediate size.
  int64_t Workspace(int64_t rows, int64_t slots, int64_t hidden, int64_t widest,
                    const Forms& forms) const;

 private:
  const KernelSet& set_;
  const ActivationNumerics numerics_;
  const int threads_;
};

}  // namespace moert::gemm

#endif  // MOERT_LIB_GEMM_OPERAND_FORMS_H_
