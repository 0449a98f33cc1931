// Packing weight matrices into records, and back.
//
// Weights are the A operand of a matrix product and are stored in A-fragment order: the matrix, its
// rows padded to kRowTile and K to kKTile with zeros, is cut into blocks of 16 rows x 16 k, stored
// row block by row block and, inside one, in ascending k. A block is 32 lanes (those of a warp's
// m16n8k16 fragment), lane = g * 4 + t with g in 0..7 and t in 0..3.
//
// bf16: four u32 a lane, low half the lower k:
//   a0 = row g,     k 2t, 2t+1        a1 = row g + 8, k 2t, 2t+1
//   a2 = row g,     k 2t+8, 2t+9      a3 = row g + 8, k 2t+8, 2t+9
#ifndef MOERT_LIB_QUANT_PACKING_H_
#define MOERT_LIB_QUANT_PACKING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "moert/scheme.h"

namespace moert {

/// Writes the weight section of one bf16 matrix. `weights`: row-major [rows, k], bf16 bits.
/// `record` is the start of the record (layout.weight_offset is added) and covers the section.
/// Padding is zeroed. Little-endian hosts only, as the format is.
absl::Status PackMatrixBf16(const MatrixLayout& layout, absl::Span<const uint16_t> weights,
                            std::byte* record);
/// The same for rows from `first` on, a multiple of kRowTile, to the end of `rows`.
absl::Status PackRowsBf16(const MatrixLayout& layout, int64_t first,
                          absl::Span<const uint16_t> rows, std::byte* record);
/// The same for channels from `first` on, a multiple of kKTile, to another multiple or the last
/// channel. A line holds the weights of all rows of one channel; lines are `apart` elements apart.
absl::Status PackChannelsBf16(const MatrixLayout& layout, int64_t first,
                              absl::Span<const uint16_t> lines, int64_t apart, std::byte* record);
/// Transposes a matrix whose channels are lines, `apart` elements apart, to row-major [rows, k].
std::vector<uint16_t> TurnChannels(const uint16_t* lines, int64_t apart, int64_t rows, int64_t k);
/// The whole matrix from fp32, rounded to nearest even.
absl::Status PackMatrixBf16(const MatrixLayout& layout, absl::Span<const float> weights,
                            std::byte* record);

/// Widens one matrix of a record, of any scheme, to row-major fp32 [rows, k], without padding.
absl::Status UnpackMatrix(const MatrixLayout& layout, const std::byte* record,
                          std::vector<float>* out);

}  // namespace moert

#endif  // MOERT_LIB_QUANT_PACKING_H_
