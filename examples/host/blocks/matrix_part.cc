#include "host/blocks/matrix_part.h"

#include "util/status_macros.h"

namespace moert::host {

std::vector<int64_t> RowsOfHeads(int heads, int64_t stride, int64_t first, int64_t count,
                                 const std::vector<int64_t>& within) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(heads * count));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = within.empty() ? i : within[static_cast<size_t>(i)];
      rows.push_back(row == kZeroRow ? kZeroRow : h * stride + first + row);
    }
  }
  return rows;
}

std::vector<MatrixPart> DeltaNetParts(const DeltaNetConfig& d, const std::string& name) {
  const int64_t keys = d.key_heads * d.key_dim, values = d.value_heads * d.value_dim;
  if (d.separate) {
    return {{name + "in_proj_qkv", 2 * keys + values},
            {name + "in_proj_z", values},
            {name + "in_proj_b", d.value_heads},
            {name + "in_proj_a", d.value_heads}};
  }
  // A key head's query, key, values and their gates stand together; so do its betas and decays.
  const int per_key = d.value_heads / d.key_heads;
  const int64_t of_key = per_key * d.value_dim, stride = 2 * d.key_dim + 2 * of_key;
  const auto part = [&](int64_t first, int64_t count) {
    return MatrixPart{name + "in_proj_qkvz", d.key_heads * count, false,
                      RowsOfHeads(d.key_heads, stride, first, count), d.key_heads * stride};
  };
  const auto coefficients = [&](int64_t first) {
    return MatrixPart{name + "in_proj_ba", d.value_heads, false,
                      RowsOfHeads(d.key_heads, 2 * per_key, first, per_key), 2 * d.value_heads};
  };
  return {part(0, d.key_dim),
          part(d.key_dim, d.key_dim),
          part(2 * d.key_dim, of_key),
          part(2 * d.key_dim + of_key, of_key),
          coefficients(0),
          coefficients(per_key)};
}

absl::StatusOr<std::vector<float>> ReadBias(const Checkpoint& checkpoint, const MatrixPart& part) {
  MOERT_ASSIGN_OR_RETURN(const auto all,
                         checkpoint.ReadF32(part.name + ".bias", {part.stored_rows()}));
  if (part.order.empty()) return all;
  std::vector<float> bias;
  for (const int64_t row : part.order) {
    bias.push_back(row == kZeroRow ? 0.0f : all[static_cast<size_t>(row)]);
  }
  return bias;
}

}  // namespace moert::host
