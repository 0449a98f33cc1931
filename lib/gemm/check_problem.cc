#include "gemm/check_problem.h"

#include <fmt/format.h>

namespace moert::gemm {

absl::Status CheckProblem(const ExpertProblem& p, size_t index, int64_t rows, int64_t hidden,
                          const kernels::KernelSet& set, ActivationNumerics numerics) {
  if (p.record == nullptr || p.layout == nullptr) {
    return absl::InvalidArgumentError(fmt::format("problem {} has no record or layout", index));
  }
  const RecordLayout& l = *p.layout;
  for (const MatrixLayout* matrix : {&l.gate, &l.up, &l.down}) {
    const kernels::OperandKind kind = kernels::OperandFor(matrix->scheme, numerics);
    const int64_t unit = matrix->scheme.imported() ? kernels::kPieceK : kKTile;
    const bool whole_groups = matrix->scheme.is_bf16() || matrix->group >= matrix->k ||
                              (matrix->group > 0 && matrix->group % unit == 0);
    if (set.For(kind, numerics).gemm[kernels::WeightKindOf(matrix->scheme)] == nullptr ||
        !whole_groups) {
      return absl::UnimplementedError(
          fmt::format("problem {}: no kernel multiplies weights in {} with groups of {}", index,
                      matrix->scheme.Name(), matrix->group));
    }
  }
  if (l.gate.k != hidden || l.up.k != hidden || l.down.rows != hidden || l.up.rows != l.gate.rows ||
      l.down.k != l.gate.rows) {
    return absl::InvalidArgumentError(fmt::format(
        "problem {}: gate [{}, {}], up [{}, {}], down [{}, {}] "
        "are no expert of hidden size {}",
        index, l.gate.rows, l.gate.k, l.up.rows, l.up.k, l.down.rows, l.down.k, hidden));
  }
  const Activation function = p.activation.function;
  if (function < Activation::kSilu || function > Activation::kRelu2) {
    return absl::InvalidArgumentError(
        fmt::format("problem {}: unknown activation {}", index, static_cast<int>(function)));
  }
  if (p.activation.gated != l.parts.gate) {
    return absl::InvalidArgumentError(
        fmt::format("problem {}: its activation takes {} gate, its record has {}", index,
                    p.activation.gated ? "a" : "no", l.parts.gate ? "one" : "none"));
  }
  if (p.tokens.size() != p.out_rows.size()) {
    return absl::InvalidArgumentError(fmt::format("problem {}: {} tokens but {} output rows", index,
                                                  p.tokens.size(), p.out_rows.size()));
  }
  for (const int32_t token : p.tokens) {
    if (token < 0 || token >= rows) {
      return absl::InvalidArgumentError(
          fmt::format("problem {}: token {} of {} rows", index, token, rows));
    }
  }
  for (const int32_t row : p.out_rows) {
    if (row < 0) {
      return absl::InvalidArgumentError(fmt::format("problem {}: output row {}", index, row));
    }
  }
  return absl::OkStatus();
}

}  // namespace moert::gemm
