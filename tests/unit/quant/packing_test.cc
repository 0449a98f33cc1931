#include "quant/packing.h"

#include <cstring>
#include <random>

#include "base/bf16.h"
#include "support/catch.h"

namespace moert {
namespace {

RecordLayout Layout(int64_t hidden, int64_t intermediate) {
  const auto l = MakeRecordLayout(hidden, intermediate, ExpertFormat::Uniform(Scheme{}));
  REQUIRE_OK(l.status());
  return *l;
}

// Every weight gets a distinct bf16 pattern for matrices of up to 2^15 weights.
std::vector<uint16_t> Pattern(int64_t count) {
  std::vector<uint16_t> w(static_cast<size_t>(count));
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<uint16_t>(i + 1);
  return w;
}

TEST_CASE("bf16 fragment order, register by register") {
  const RecordLayout l = Layout(128, 64);
  const MatrixLayout& m = l.up;  // not the first: offsets count
  const std::vector<uint16_t> w = Pattern(m.rows * m.k);
  std::vector<std::byte> record(static_cast<size_t>(l.bytes));
  REQUIRE_OK(PackMatrixBf16(m, w, record.data()));
  const auto at = [&](int64_t row, int64_t k) {
    return uint32_t{w[static_cast<size_t>(row * m.k + k)]};
  };
  for (int64_t block = 0; block < 4; ++block) {
    for (int64_t k16 = 0; k16 < 8; ++k16) {
      for (int64_t lane = 0; lane < 32; ++lane) {
        uint32_t a[4];
        std::memcpy(a, record.data() + m.weight_offset + ((block * 8 + k16) * 32 + lane) * 16, 16);
        const int64_t g = block * 16 + lane / 4, k = k16 * 16 + 2 * (lane % 4);
        CHECK(a[0] == (at(g, k) | at(g, k + 1) << 16));
        CHECK(a[1] == (at(g + 8, k) | at(g + 8, k + 1) << 16));
        CHECK(a[2] == (at(g, k + 8) | at(g, k + 9) << 16));
        CHECK(a[3] == (at(g + 8, k + 8) | at(g + 8, k + 9) << 16));
      }
    }
  }
  // The neighbours are untouched.
  for (int64_t i = 0; i < m.weight_offset; ++i)
    REQUIRE(record[static_cast<size_t>(i)] == std::byte{0});
}

TEST_CASE("rows that are packed in parts are those of the whole") {
  const RecordLayout l = Layout(72, 100);
  const MatrixLayout& m = l.gate;
  const std::vector<uint16_t> w = Pattern(m.rows * m.k);
  std::vector<std::byte> whole(static_cast<size_t>(l.bytes)), parts(whole.size());
  REQUIRE_OK(PackMatrixBf16(m, w, whole.data()));
  const absl::Span<const uint16_t> all(w);
  for (int64_t first = 0; first < m.rows; first += 48) {
    REQUIRE_OK(PackRowsBf16(m, first, all.subspan(first * m.k, 48 * m.k), parts.data()));
  }
  CHECK(parts == whole);
  const auto refused = [&](int64_t first, int64_t rows) {
    return std::string(PackRowsBf16(m, first, all.first(rows * m.k), parts.data()).message());
  };
  CHECK_THAT(refused(8, 16), Catch::Contains("from row 8"));
  CHECK_THAT(refused(0, 17), Catch::Contains("whole blocks"));
  CHECK_THAT(refused(96, 16), Catch::Contains("100 x 72"));
}

TEST_CASE("channels that are packed in parts, line by line, are those of the whole") {
  const RecordLayout l = Layout(200, 100);
  const MatrixLayout& m = l.gate;
  const std::vector<uint16_t> w = Pattern(m.rows * m.k);
  std::vector<std::byte> whole(static_cast<size_t>(l.bytes)), parts(whole.size());
  std::memset(parts.data() + m.weight_offset, 0xee, static_cast<size_t>(m.weight_bytes));
  REQUIRE_OK(PackMatrixBf16(m, w, whole.data()));
  const int64_t apart = m.rows + 3;
  std::vector<uint16_t> lines(m.k * apart, 0xffff);
  for (int64_t i = 0; i < m.rows * m.k; ++i) lines[i % m.k * apart + i / m.k] = w[i];
  const absl::Span<const uint16_t> all(lines);
  const auto pack = [&](int64_t first, int64_t count) {
    const auto some = all.subspan(first * apart, (count - 1) * apart + m.rows);
    return PackChannelsBf16(m, first, some, apart, parts.data());
  };
  REQUIRE_OK(pack(128, 72));
  REQUIRE_OK(pack(0, 128));
  CHECK(parts == whole);
  CHECK_THAT(std::string(pack(8, 64).message()), Catch::Contains("from channel 8"));
  CHECK_THAT(std::string(pack(0, 63).message()), Catch::Contains("whole tiles"));
  CHECK_FALSE(PackChannelsBf16(m, 192, all.first(9 * apart), apart, parts.data()).ok());
}

TEST_CASE("packing and unpacking give the weights back, padding is zero") {
  for (const auto& [hidden, intermediate] :
       {std::pair<int64_t, int64_t>{128, 64}, {100, 20}, {1, 1}, {65, 17}}) {
    const RecordLayout l = Layout(hidden, intermediate);
    std::vector<std::byte> record(static_cast<size_t>(l.bytes), std::byte{0xee});
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    for (const MatrixLayout* m : {&l.gate, &l.up, &l.down}) {
      std::vector<float> w(static_cast<size_t>(m->rows * m->k));
      for (float& v : w) v = normal(rng);
      REQUIRE_OK(PackMatrixBf16(*m, w, record.data()));
      std::vector<float> back;
      REQUIRE_OK(UnpackMatrix(*m, record.data(), &back));
      REQUIRE(back.size() == w.size());
      for (size_t i = 0; i < w.size(); ++i) REQUIRE(back[i] == RoundToBf16(w[i]));

      int64_t nonzero = 0;
      for (int64_t i = 0; i < m->weight_bytes; i += 2) {
        uint16_t v;
        std::memcpy(&v, record.data() + m->weight_offset + i, 2);
        nonzero += v != 0;
      }
      CHECK(nonzero <= m->rows * m->k);
    }
  }
}

TEST_CASE("what cannot be packed is refused") {
  const RecordLayout l = Layout(128, 64);
  std::vector<std::byte> record(static_cast<size_t>(l.bytes));
  CHECK_FALSE(PackMatrixBf16(l.gate, Pattern(5), record.data()).ok());
  MatrixLayout w4 = l.gate;
  w4.scheme = *Scheme::Parse("w4a16_g128");
  CHECK_FALSE(PackMatrixBf16(w4, Pattern(64 * 128), record.data()).ok());
}

}  // namespace
}  // namespace moert
