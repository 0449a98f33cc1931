// Codes of files in every form, tile by tile, against their places one by one.
#include "checkpoint/stored_codes.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/edit_checkpoint.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::TempDir;

bool InWords(CodeForm form) {
  return form == CodeForm::kChannelWords || form == CodeForm::kRowWords;
}

unsigned Nibble(const uint8_t* bytes, int64_t i) {
  return i % 2 == 0 ? bytes[i / 2] & 15u : bytes[i / 2] >> 4u;
}

unsigned Code(const StoredCodes& c, const uint8_t* bytes, int64_t row, int64_t k) {
  constexpr int64_t kAwqNibble[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const uint8_t* const line = bytes + (c.first_line + row * c.line_step) * c.line_bytes;
  switch (c.form) {
    case CodeForm::kBytes:
      return line[k];
    case CodeForm::kSignedBytes:
      return static_cast<unsigned>(static_cast<int8_t>(line[k]) + 128);
    case CodeForm::kNibbles:
      return Nibble(line, k);
    case CodeForm::kChannelWords:
      return Nibble(bytes + k / 8 * c.line_bytes + row * 4, k % 8);
    case CodeForm::kRowWords:
      return Nibble(bytes + k * c.line_bytes + row / 8 * 4, kAwqNibble[row % 8]);
  }
  return 0;
}

int64_t LineBytes(CodeForm form, int64_t rows, int64_t k) {
  switch (form) {
    case CodeForm::kBytes:
    case CodeForm::kSignedBytes:
      return k;
    case CodeForm::kNibbles:
      return (k + 1) / 2;
    case CodeForm::kChannelWords:
      return rows * 4;
    case CodeForm::kRowWords:
      return rows / 2;
  }
  return 0;
}

// Each code once, read in so many parts, and zeros past the ends.
void CheckTiles(const Checkpoint& checkpoint, const StoredCodes& codes, const std::string& bytes,
                int64_t parts) {
  const auto* raw = reinterpret_cast<const uint8_t*>(bytes.data());
  int64_t differences = 0, tiles = 0;
  const auto check = [&](int64_t row, int64_t k, const CodeTile& tile) {
    ++tiles;
    for (int64_t i = 0; i < kRowTile * kKTile; ++i) {
      const int64_t r = row + i / kKTile, c = k + i % kKTile;
      const bool inside = r < codes.rows && c < codes.k;
      const unsigned expected = inside ? Code(codes, raw, r, c) : 0;
      differences += tile[i / kKTile][i % kKTile] != expected;
    }
    return absl::OkStatus();
  };
  for (int64_t i = 0; i < parts; ++i) {
    REQUIRE_OK(ReadCodeTiles(checkpoint, codes, check, {i, parts}));
  }
  CHECK(differences == 0);
  CHECK(tiles == (codes.rows + kRowTile - 1) / kRowTile * ((codes.k + kKTile - 1) / kKTile));
}

TEST_CASE("tiles of every form and odd shapes") {
  const CodeForm form = GENERATE(CodeForm::kBytes, CodeForm::kSignedBytes, CodeForm::kNibbles,
                                 CodeForm::kChannelWords, CodeForm::kRowWords);
  struct Shape {
    int64_t rows, k;
  };
  // The last take several reads.
  const std::vector<Shape> any = {{1, 1}, {5, 7}, {16, 64}, {33, 130}, {300, 701}};
  const std::vector<Shape> eights = {{8, 8}, {16, 64}, {24, 72}, {40, 200}, {2056, 136}};
  for (const Shape& shape : InWords(form) ? eights : any) {
    for (const int64_t step : {1, 2}) {
      if (step == 2 && InWords(form)) continue;
      INFO(static_cast<int>(form) << ": " << shape.rows << " x " << shape.k << ", step " << step);
      StoredCodes codes = {nullptr, form, shape.rows, shape.k};
      codes.line_bytes = LineBytes(form, shape.rows, shape.k);
      codes.first_line = step - 1;
      codes.line_step = step;
      const int64_t lines = !InWords(form)                    ? shape.rows * step
                            : form == CodeForm::kChannelWords ? shape.k / 8
                                                              : shape.k;
      std::mt19937 random(7);
      std::string bytes(static_cast<size_t>(lines * codes.line_bytes), '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      TempDir dir;
      test::WriteFile(
          dir / "model.safetensors",
          test::ToSafetensors({{"codes", {"U8", {static_cast<int64_t>(bytes.size())}, bytes}}}));
      const auto checkpoint = Checkpoint::Open(dir.path());
      REQUIRE_OK(checkpoint.status());
      codes.tensor = (*checkpoint)->Find("codes");
      for (const int64_t parts : {1, 3}) CheckTiles(**checkpoint, codes, bytes, parts);
    }
  }
}

TEST_CASE("an error of the receiver ends the reading") {
  TempDir dir;
  test::WriteFile(dir / "model.safetensors",
                  test::ToSafetensors({{"codes", {"U8", {6400}, std::string(6400, '\1')}}}));
  const auto checkpoint = Checkpoint::Open(dir.path());
  REQUIRE_OK(checkpoint.status());
  StoredCodes codes = {(*checkpoint)->Find("codes"), CodeForm::kBytes, 100, 64, 64};
  int calls = 0;
  const absl::Status status =
      ReadCodeTiles(**checkpoint, codes, [&](int64_t, int64_t, const auto&) {
        return ++calls == 2 ? absl::DataLossError("enough") : absl::OkStatus();
      });
  CHECK(status.message() == "enough");
  CHECK(calls == 2);
}

}  // namespace
}  // namespace moert
