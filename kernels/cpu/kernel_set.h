// Kernel sets: tables of kernels that one CPU can run, chosen once by what it supports or by name.
#ifndef MOERT_KERNELS_CPU_KERNEL_SET_H_
#define MOERT_KERNELS_CPU_KERNEL_SET_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/block_gemm.h"
#include "moert/model.h"
#include "moert/scheme.h"

namespace moert::kernels {

/// The forms in which activations enter a product. Which one a matrix takes follows from its scheme
/// and the caller's ActivationNumerics, never from the kernel set (OperandFor).
enum class OperandKind {
  kPlain,      // bf16 or fp32, against bf16 weights
  kSummed,     // the same against quantized weights: with sums for their zero points. Imported
               // schemes read no sums
  kInt8Group,  // int8, a scale per 128 channels
  kInt8Token,  // int8, a scale per row
  kInt4Group,  // int8 that hold 4 bits
  kInt4Token,
  kF8Token,  // e4m3, a scale per row
  kF8Group,  // kSummed of values rounded to e4m3 before (RoundF8Group)
};
inline constexpr int kOperandKinds = 8;

/// The kernels for one form of activations. A null gemm: this form is not used with weights of that
/// kind.
struct OperandKernels {
  int64_t bytes_per_tile = 0;  // of a packed row, which is rounded up to 64 bytes
  PackFn pack = nullptr;       // whole rows: k16s is a multiple of 4
  BlockGemmFn gemm[kWeightKinds] = {};
  // For at least `wide_from` columns whose rows are at equal distances: bit-identical products.
  // Null where there is none.
  BlockGemmFn wide[kWeightKinds] = {};
  int wide_from = 1;
  // Bytes that a wide kernel needs to keep 64 channels of a row block as tiles
  // (BlockGemmArgs::tiles); 0: it keeps none.
  int64_t kept_bytes[kWeightKinds] = {};
};

struct KernelSet {
  const char* name;
  bool supported;                          // by this CPU and its operating system
  OperandKernels operands[kOperandKinds];  // kPlain and kSummed: rounded to bf16
  OperandKernels plain_f32, summed_f32;    // not rounded
  GluFn glu[4];                            // by Activation

  const OperandKernels& For(OperandKind kind, ActivationNumerics numerics) const {
    if (numerics == ActivationNumerics::kF32 && kind == OperandKind::kPlain) return plain_f32;
    if (numerics == ActivationNumerics::kF32 && kind == OperandKind::kSummed) return summed_f32;
    if (kind == OperandKind::kF8Group) kind = OperandKind::kSummed;
    return operands[static_cast<int>(kind)];
  }
};

/// The operand form of matrices in `scheme`. kInt8 gives integer activations to schemes without
/// quantized activations of their own, bf16 weights excepted; kFp8 gives e4m3 activations to
/// fp8_b128. Schemes with quantized activations keep them under all numerics.
OperandKind OperandFor(const Scheme& scheme, ActivationNumerics numerics);
/// Whether matrices in `scheme` take kF8Group operands under these numerics.
bool TakesF8Group(const Scheme& scheme, ActivationNumerics numerics);
/// Whether h is rounded to bf16 before it is packed for a down matrix in `scheme`: if it is
/// quantized, or transformed under other numerics than kF32.
bool RoundsH(const Scheme& scheme, bool hadamard, ActivationNumerics numerics);
WeightKind WeightKindOf(const Scheme& scheme);

/// The sets this CPU can run, best first; "reference" is always last. Thread-safe.
const std::vector<const KernelSet*>& SupportedKernelSets();

/// "auto": the first of SupportedKernelSets. Else the set of that name; the error lists the names
/// that are legal here. Every set serves every scheme.
absl::StatusOr<const KernelSet*> FindKernelSet(absl::string_view name);

}  // namespace moert::kernels

#endif  // MOERT_KERNELS_CPU_KERNEL_SET_H_
