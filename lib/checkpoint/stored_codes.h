// The codes of a matrix in their stored form, read a tile at a time.
#ifndef MOERT_LIB_CHECKPOINT_STORED_CODES_H_
#define MOERT_LIB_CHECKPOINT_STORED_CODES_H_

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/checked_math.h"
#include "moert/offline/checkpoint.h"
#include "quant/code_tile.h"

namespace moert {

/// How codes are stored in consecutive lines.
enum class CodeForm {
  kBytes,         // a line: a row, a byte a channel
  kSignedBytes,   // the same, less 128
  kNibbles,       // a line: a row, two channels a byte, the lower one in the low bits
  kChannelWords,  // GPTQ, a line: eight channels, an int32 a row
  kRowWords,      // AWQ, a line: a channel, an int32 of eight rows
};

/// AWQ's order of rows: the row, of eight, that each nibble of a word belongs to.
inline constexpr int64_t kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};

/// The place of stored codes. Word forms need rows and channels that are multiples of 8.
struct StoredCodes {
  const TensorInfo* tensor = nullptr;
  CodeForm form = CodeForm::kBytes;
  int64_t rows = 0;
  int64_t k = 0;
  int64_t line_bytes = 0;
  int64_t first_line = 0;
  int64_t line_step = 1;  // from row to row
};

/// One of `of` parts of a matrix, which several threads may read: a part of its rows, or of its
/// channels if the file stores it by channels.
struct MatrixPart {
  int64_t number = 0;
  int64_t of = 1;

  struct Range {
    int64_t first = 0, end = 0;
  };
  /// The part's range of `all`: whole tiles, or up to the end. May be empty.
  Range Of(int64_t all, int64_t tile) const {
    const int64_t tiles = CeilDiv(all, tile);
    return {tiles * number / of * tile, std::min(all, tiles * (number + 1) / of * tile)};
  }
};

/// Receives the tile whose first code is at (row, k); an error ends the reading.
using TakeTile = absl::FunctionRef<absl::Status(int64_t row, int64_t k, const CodeTile& codes)>;

/// Reads all tiles of a part, each once, some lines at a time.
absl::Status ReadCodeTiles(const Checkpoint& checkpoint, const StoredCodes& codes, TakeTile take,
                           const MatrixPart& part = {});

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_STORED_CODES_H_
