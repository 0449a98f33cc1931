#include "checkpoint/stored_codes.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/status_macros.h"
#include "quant/shuffle_lines.h"

namespace moert {
namespace {

constexpr int64_t kOfWord = 8;
constexpr int64_t kVector = 16;
constexpr int64_t kPassBytes = int64_t{1} << 16;  // stay in a core's cache

__m128i Load(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
void Store(__m128i bytes, uint8_t* to) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes); }
__m128i LowNibbles(__m128i x) { return _mm_and_si128(x, _mm_set1_epi8(15)); }
__m128i HighNibbles(__m128i x) { return LowNibbles(_mm_srli_epi16(x, 4)); }

void UnpackBytes(const uint8_t* from, int64_t width, uint8_t flip, uint8_t* to) {
  const __m128i flips = _mm_set1_epi8(static_cast<char>(flip));
  int64_t i = 0;
  for (; i + kVector <= width; i += kVector) Store(_mm_xor_si128(Load(from + i), flips), to + i);
  for (; i < width; ++i) to[i] = from[i] ^ flip;
}

void UnpackNibbles(const uint8_t* from, int64_t width, uint8_t* to) {
  int64_t i = 0;
  for (; i + 2 * kVector <= width; i += 2 * kVector) {
    const __m128i both = Load(from + i / 2);
    const __m128i low = LowNibbles(both), high = HighNibbles(both);
    Store(_mm_unpacklo_epi8(low, high), to + i);
    Store(_mm_unpackhi_epi8(low, high), to + i + kVector);
  }
  for (; i < width; ++i) to[i] = i % 2 == 0 ? from[i / 2] & 15 : from[i / 2] >> 4;
}

// Eight codes of each of two rows.
void StoreRows(__m128i codes, uint8_t* first, uint8_t* second) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(first), codes);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(second), _mm_unpackhi_epi64(codes, codes));
}

// Eight channels of four rows at a time; `lines` lie `apart`.
void UnpackChannelWords(const uint8_t* lines, int64_t apart, int64_t rows, int64_t width,
                        CodeTile& codes) {
  for (int64_t k = 0; k < width; k += kOfWord, lines += apart) {
    for (int64_t r = 0; r < rows; r += 4) {
      const __m128i words = Load(lines + r * 4);
      const __m128i low = LowNibbles(words), high = HighNibbles(words);
      StoreRows(_mm_unpacklo_epi8(low, high), codes[r] + k, codes[r + 1] + k);
      StoreRows(_mm_unpackhi_epi8(low, high), codes[r + 2] + k, codes[r + 3] + k);
    }
  }
}

// The words of a channel: eight or 16 rows.
__m128i LoadChannel(const uint8_t* line, int64_t rows) {
  if (rows == kRowTile) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(line));
  int32_t word;
  std::memcpy(&word, line, sizeof(word));
  return _mm_cvtsi32_si128(word);
}

// 16 channels at a time; `lines` lie `apart`.
void UnpackRowWords(const uint8_t* lines, int64_t apart, int64_t rows, int64_t width,
                    CodeTile& codes) {
  for (int64_t k = 0; k < width; k += kVector) {
    EightLines channels = {};
    for (int64_t c = 0; c < std::min(kVector, width - k); c += 2) {
      const uint8_t* line = lines + (k + c) * apart;
      channels.x[c / 2] =
          _mm_unpacklo_epi64(LoadChannel(line, rows), LoadChannel(line + apart, rows));
    }
    // [16 channels][8 bytes] -> [8 bytes][16 channels]
    const EightLines bytes = ShuffleLines<uint8_t, 4>(channels);
    for (int64_t i = 0; i < rows; i += 2) {
      const int64_t first = i / kOfWord * kOfWord;
      const __m128i both = bytes.x[i / 2];
      Store(LowNibbles(both), codes[first + kAwqOrder[i % kOfWord]] + k);
      Store(HighNibbles(both), codes[first + kAwqOrder[i % kOfWord + 1]] + k);
    }
  }
}

/// Rows and channels whose lines have been read.
struct Lines {
  int64_t row, rows, k, width;
  const uint8_t* lines;
};

void Unpack(const StoredCodes& from, const Lines& pass, int64_t row, int64_t k, CodeTile& codes) {
  const int64_t rows = std::min<int64_t>(kRowTile, pass.row + pass.rows - row);
  const int64_t width = std::min<int64_t>(kKTile, pass.k + pass.width - k);
  if (rows < kRowTile || width < kKTile) std::memset(codes, 0, sizeof(codes));
  if (from.form == CodeForm::kChannelWords) {
    const uint8_t* lines = pass.lines + (k - pass.k) / kOfWord * from.line_bytes;
    return UnpackChannelWords(lines + row * 4, from.line_bytes, rows, width, codes);
  }
  if (from.form == CodeForm::kRowWords) {
    const uint8_t* lines = pass.lines + (k - pass.k) * from.line_bytes;
    return UnpackRowWords(lines + row / 2, from.line_bytes, rows, width, codes);
  }
  const int64_t apart = from.line_step * from.line_bytes;
  const uint8_t* line = pass.lines + (row - pass.row) * apart;
  for (int64_t r = 0; r < rows; ++r, line += apart) {
    if (from.form == CodeForm::kNibbles) {
      UnpackNibbles(line + k / 2, width, codes[r]);
    } else {
      UnpackBytes(line + k, width, from.form == CodeForm::kSignedBytes ? 0x80 : 0, codes[r]);
    }
  }
}

}  // namespace

absl::Status ReadCodeTiles(const Checkpoint& checkpoint, const StoredCodes& from, TakeTile take,
                           const MatrixPart& part) {
  const bool words = from.form == CodeForm::kChannelWords || from.form == CodeForm::kRowWords;
  // A line covers one of `rows` or of `k`, or eight of the latter.
  const int64_t tile = words ? kKTile : kRowTile;
  const auto [begin, end] = part.Of(words ? from.k : from.rows, tile);
  const int64_t of_line = from.form == CodeForm::kChannelWords ? kOfWord : 1;
  const int64_t apart = from.line_step * from.line_bytes;
  const int64_t most = std::max<int64_t>(kPassBytes / apart * of_line / tile, 1) * tile;
  const auto lines = std::make_unique_for_overwrite<uint8_t[]>(
      static_cast<size_t>(std::min(most, end - begin) / of_line * apart));
  CodeTile codes;
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = std::min(most, end - first);
    const int64_t bytes = (count / of_line - 1) * apart + from.line_bytes;
    MOERT_RETURN_IF_ERROR(checkpoint.ReadBytes(
        *from.tensor, from.first_line * from.line_bytes + first / of_line * apart,
        {reinterpret_cast<std::byte*>(lines.get()), static_cast<size_t>(bytes)}));
    const Lines pass = words ? Lines{0, from.rows, first, count, lines.get()}
                             : Lines{first, count, 0, from.k, lines.get()};
    for (int64_t row = pass.row; row < pass.row + pass.rows; row += kRowTile) {
      for (int64_t k = pass.k; k < pass.k + pass.width; k += kKTile) {
        Unpack(from, pass, row, k, codes);
        MOERT_RETURN_IF_ERROR(take(row, k, codes));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace moert
