// Steps of many rows in parts, so that the sum of one part travels while the next is computed.
#ifndef MOERT_LIB_PARALLEL_ROW_PARTS_H_
#define MOERT_LIB_PARALLEL_ROW_PARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "moert/engine.h"
#include "moert/tensor.h"

namespace moert {

/// Rows [first, first + count) of a step.
struct RowPart {
  int64_t first = 0;
  int64_t count = 0;
};

/// `rows` in parts of at most `most` (0: one part), nearly equal, in order.
inline std::vector<RowPart> CutRows(int64_t rows, int64_t most) {
  const int64_t parts = most <= 0 ? 1 : std::max<int64_t>(1, (rows + most - 1) / most);
  std::vector<RowPart> cut;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t first = rows * p / parts;
    cut.push_back({first, rows * (p + 1) / parts - first});
  }
  return cut;
}

inline MatrixView PartOf(const MatrixView& all, const RowPart& part) {
  MatrixView view = all;
  view.data =
      static_cast<const std::byte*>(all.data) + part.first * all.row_stride * DTypeBytes(all.dtype);
  view.rows = part.count;
  return view;
}
inline MutableMatrixView PartOf(const MutableMatrixView& all, const RowPart& part) {
  MutableMatrixView view = all;
  view.data =
      static_cast<std::byte*>(all.data) + part.first * all.row_stride * DTypeBytes(all.dtype);
  view.rows = part.count;
  return view;
}

/// The part of a span with as many values for each of `rows` rows, or none.
template <typename T>
absl::Span<T> PartOf(absl::Span<T> all, int64_t rows, const RowPart& part) {
  if (all.empty()) return all;
  const auto each = all.size() / static_cast<size_t>(rows);
  return all.subspan(each * static_cast<size_t>(part.first),
                     each * static_cast<size_t>(part.count));
}

inline RoutedInput PartOf(const RoutedInput& all, int64_t rows, const RowPart& part) {
  RoutedInput routing = all;
  routing.ids = PartOf(all.ids, rows, part);
  routing.weights = PartOf(all.weights, rows, part);
  routing.scores = PartOf(all.scores, rows, part);
  routing.next_scores = PartOf(all.next_scores, rows, part);
  routing.used_ids = PartOf(all.used_ids, rows, part);
  return routing;
}

inline StepInfo PartOf(const StepInfo& all, const RowPart& part) {
  StepInfo info = all;
  info.rows = part.count;
  info.request_ids = PartOf(all.request_ids, all.rows, part);
  info.positions = PartOf(all.positions, all.rows, part);
  info.token_ids = PartOf(all.token_ids, all.rows, part);
  return info;
}

}  // namespace moert

#endif  // MOERT_LIB_PARALLEL_ROW_PARTS_H_
