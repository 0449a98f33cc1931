#include "gemm/check_problem.h"

#include "base/errors.h"

namespace moert::gemm {

absl::Status CheckProblem(const ExpertProblem& p, size_t index, int64_t rows, int64_t hidden,
                          const kernels::KernelSet& set, ActivationNumerics numerics) {
  if (p.record == nullptr || p.layout == nullptr) {
    return InvalidArgument("problem {} has no record or layout", index);
  }
  const RecordLayout& l = *p.layout;
  for (const MatrixLayout* matrix : {&l.gate, &l.up, &l.down}) {
    const kernels::OperandKind kind = kernels::OperandFor(matrix->scheme, numerics);
    const int64_t unit = matrix->scheme.imported() ? kernels::kPieceK : kKTile;
    const bool whole_groups = matrix->scheme.is_bf16() || matrix->group >= matrix->k ||
                              (matrix->group > 0 && matrix->group % unit == 0);
    if (set.For(kind, numerics).gemm[kernels::WeightKindOf(matrix->scheme)] == nullptr ||
        !whole_groups) {
      return Unimplemented("problem {}: no kernel multiplies weights in {} with groups of {}",
                           index, matrix->scheme.Name(), matrix->group);
    }
  }
  if (l.gate.k != hidden || l.up.k != hidden || l.down.rows != hidden || l.up.rows != l.gate.rows ||
      l.down.k != l.gate.rows) {
    return InvalidArgument(
        "problem {}: gate [{}, {}], up [{}, {}], down [{}, {}] are no expert of hidden size {}",
        index, l.gate.rows, l.gate.k, l.up.rows, l.up.k, l.down.rows, l.down.k, hidden);
  }
  const Activation function = p.activation.function;
  if (function < Activation::kSilu || function > Activation::kRelu2) {
    return InvalidArgument("problem {}: unknown activation {}", index, static_cast<int>(function));
  }
  if (p.activation.gated != l.contents.gate) {
    return InvalidArgument("problem {}: its activation takes {} gate, its record has {}", index,
                           p.activation.gated ? "a" : "no", l.contents.gate ? "one" : "none");
  }
  if (p.tokens.size() != p.out_rows.size()) {
    return InvalidArgument("problem {}: {} tokens but {} output rows", index, p.tokens.size(),
                           p.out_rows.size());
  }
  for (const int32_t token : p.tokens) {
    if (token < 0 || token >= rows) {
      return InvalidArgument("problem {}: token {} of {} rows", index, token, rows);
    }
  }
  for (const int32_t row : p.out_rows) {
    if (row < 0) return InvalidArgument("problem {}: output row {}", index, row);
  }
  return absl::OkStatus();
}

}  // namespace moert::gemm
