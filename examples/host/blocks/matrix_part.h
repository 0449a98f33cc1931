// Matrices assembled from rows of several tensors.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_MATRIX_PART_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_MATRIX_PART_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/linear_weight.h"

namespace moert::host {

/// An entry of a part's `order` that stands for a row of zeros.
constexpr int64_t kZeroRow = -1;

struct MatrixPart {
  std::string name;  // of the tensors NAME.weight [out, in] and NAME.bias [out]
  int64_t out = 0;
  bool bias = false;
  /// Indices into the tensor's `rows` rows, in order; empty: all `out` rows as they are.
  std::vector<int64_t> order = {};
  int64_t rows = 0;

  int64_t stored_rows() const { return order.empty() ? out : rows; }
};

/// Row indices h * stride + first + within[i] for each head h of `heads`; kZeroRow where within[i]
/// is kZeroRow. An empty `within` stands for 0 to count - 1.
std::vector<int64_t> RowsOfHeads(int heads, int64_t stride, int64_t first, int64_t count,
                                 const std::vector<int64_t>& within = {});

/// The input projection of a delta net, LAYER.linear_attn., in one order for all file formats:
/// queries, keys, values, gates of values, betas, decays, each by head.
std::vector<MatrixPart> DeltaNetParts(const DeltaNetConfig& sizes, const std::string& name);

/// Rows [first, first + count) of a part, contiguous: bf16 bits, or floats.
template <typename T>
absl::Status ReadRows(const LinearWeight& weight, const MatrixPart& part, int64_t in, int64_t first,
                      int64_t count, absl::Span<T> to) {
  const auto row = [&](int64_t i) {
    return part.order.empty() ? first + i : part.order[static_cast<size_t>(first + i)];
  };
  for (int64_t i = 0, together = 1; i < count; i += together, together = 1) {
    if (row(i) == kZeroRow) {
      std::fill_n(to.begin() + i * in, in, T{});
      continue;
    }
    while (i + together < count && row(i + together) == row(i) + together) ++together;
    absl::Status status = weight.Read(
        row(i), to.subspan(static_cast<size_t>(i * in), static_cast<size_t>(together * in)));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

/// The bias of a part that has one.
absl::StatusOr<std::vector<float>> ReadBias(const Checkpoint& checkpoint, const MatrixPart& part);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_MATRIX_PART_H_
