#include "moert/scheme.h"

#include <set>

#include "support/catch.h"

namespace moert {
namespace {

Scheme Get(const char* name) {
  const auto s = Scheme::Parse(name);
  REQUIRE_OK(s.status());
  return *s;
}

TEST_CASE("every scheme's name parses to itself") {
  std::set<std::string> names;
  for (const Scheme& s : Scheme::All()) {
    INFO(s.Name());
    const auto parsed = Scheme::Parse(s.Name());
    REQUIRE_OK(parsed.status());
    CHECK(*parsed == s);
    CHECK(names.insert(s.Name()).second);
  }
  for (const char* name :
       {"bf16", "w8a16_g128", "w4a16_g128", "w4a16_g128_asym", "w3a16_g128_asym", "w2a16_g64_asym",
        "w2a16_g128_asym", "w2a16_g-1_asym", "w3a16_g-1_asym", "w4a16_g-1_asym", "w8a8", "w8a8_fp8",
        "w4a8_g128", "w4a4_g128", "w4a4"}) {
    CHECK(names.count(name) == 1);
  }
}

TEST_CASE("schemes are listed most stored bits first") {
  double last = 17;
  for (const Scheme& s : Scheme::All()) {
    const auto layout = MakeRecordLayout(4096, 4096, ExpertFormat::Uniform(s));
    REQUIRE_OK(layout.status());
    INFO(s.Name() << " " << layout->stored_bits());
    CHECK(layout->stored_bits() <= last);
    last = layout->stored_bits();
  }
}

TEST_CASE("an unknown scheme is refused with the legal names") {
  for (const char* name : {"", "w5a16", "BF16", "w4a16", "w4a16_g-1", "w4a16_g128_asym "}) {
    const auto s = Scheme::Parse(name);
    REQUIRE_FALSE(s.ok());
    const std::string message(s.status().message());
    CHECK(message.find("\"" + std::string(name) + "\"") != std::string::npos);
    CHECK(message.find("w2a16_g64_asym") != std::string::npos);
  }
}

TEST_CASE("bf16 layout of tiny-moe's experts, by hand") {
  const auto l = MakeRecordLayout(128, 64, ExpertFormat::Uniform(Get("bf16")));
  REQUIRE_OK(l.status());
  // gate and up 64 x 128, down 128 x 64: no padding, 16384 bytes each.
  CHECK(l->gate.weight_offset == 0);
  CHECK(l->gate.weight_bytes == 16384);
  CHECK(l->gate.scale_bytes == 0);
  CHECK(l->up.weight_offset == 16384);
  CHECK(l->down.weight_offset == 32768);
  CHECK(l->down.rows == 128);
  CHECK(l->down.k == 64);
  CHECK(l->bytes == 49152);
  CHECK(l->stored_bits() == 16.0);
}

TEST_CASE("padding of odd shapes, by hand") {
  const auto l = MakeRecordLayout(100, 20, ExpertFormat::Uniform(Get("bf16")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.padded_rows == 32);
  CHECK(l->gate.padded_k == 128);
  CHECK(l->gate.weight_bytes == 32 * 128 * 2);
  CHECK(l->down.padded_rows == 112);
  CHECK(l->down.padded_k == 64);
  CHECK(l->down.weight_offset == 2 * 8192);
  CHECK(l->bytes == 2 * 8192 + 112 * 64 * 2);
  CHECK(l->stored_bits() == Approx(8.0 * 30720 / (3 * 2000)));
}

TEST_CASE("quantized layouts, by hand") {
  // 256 x 256 everywhere: 32768 bytes of 4-bit weights, 2 groups x 256 rows x 2 bytes of scales.
  auto l = MakeRecordLayout(256, 256, ExpertFormat::Uniform(Get("w4a16_g128")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.weight_bytes == 32768);
  CHECK(l->gate.scale_offset == 32768);
  CHECK(l->gate.scale_bytes == 1024);
  CHECK(l->up.weight_offset == 33792);
  CHECK(l->bytes == 3 * 33792);
  CHECK(l->stored_bits() == 4.125);

  // Asymmetric: scales and scale * zero.
  l = MakeRecordLayout(256, 256, ExpertFormat::Uniform(Get("w2a16_g64_asym")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.weight_bytes == 16384);
  CHECK(l->gate.scale_bytes == 4 * 256 * 4);
  CHECK(l->stored_bits() == 2.5);

  l = MakeRecordLayout(256, 256, ExpertFormat::Uniform(Get("w3a16_g128_asym")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.weight_bytes == 24576);
  CHECK(l->stored_bits() == 3.25);

  // A group never exceeds K: with K = 64 a group of 128 is one of 64.
  l = MakeRecordLayout(128, 64, ExpertFormat::Uniform(Get("w4a16_g128")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.group == 128);
  CHECK(l->down.group == 64);
  CHECK(l->down.scale_bytes == 128 * 2);

  // Per channel: one scale a row.
  l = MakeRecordLayout(256, 512, ExpertFormat::Uniform(Get("w8a8")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.group == 256);
  CHECK(l->gate.scale_bytes == 512 * 2);
  CHECK(l->down.group == 512);

  // A ragged last group has a scale of its own.
  l = MakeRecordLayout(200, 64, ExpertFormat::Uniform(Get("w4a16_g128")));
  REQUIRE_OK(l.status());
  CHECK(l->gate.scale_bytes == 2 * 64 * 2);
}

TEST_CASE("sections are aligned, ordered and disjoint for every scheme and odd shapes") {
  for (const Scheme& s : Scheme::All()) {
    for (const int64_t hidden : {1, 63, 64, 100, 2048}) {
      for (const int64_t intermediate : {1, 16, 17, 1408}) {
        const auto l = MakeRecordLayout(hidden, intermediate, ExpertFormat::Uniform(s));
        REQUIRE_OK(l.status());
        int64_t end = 0;
        for (const MatrixLayout* m : {&l->gate, &l->up, &l->down}) {
          CHECK(m->weight_offset % kSectionAlignment == 0);
          CHECK(m->scale_offset % kSectionAlignment == 0);
          CHECK(m->weight_offset >= end);
          CHECK(m->scale_offset >= m->weight_offset + m->weight_bytes);
          end = m->scale_offset + m->scale_bytes;
        }
        CHECK(l->bytes >= end);
        CHECK(l->bytes % kSectionAlignment == 0);
      }
    }
  }
}

TEST_CASE("impossible dimensions are refused") {
  const ExpertFormat bf16 = ExpertFormat::Uniform(Get("bf16"));
  CHECK_FALSE(MakeRecordLayout(0, 64, bf16).ok());
  CHECK_FALSE(MakeRecordLayout(64, -1, bf16).ok());
  CHECK_FALSE(MakeRecordLayout(INT64_MAX, 64, bf16).ok());
  CHECK_FALSE(MakeRecordLayout(int64_t{1} << 31, int64_t{1} << 31, bf16).ok());
  // One matrix still fits, three do not.
  CHECK_FALSE(MakeRecordLayout(int64_t{1} << 31, int64_t{1} << 30, bf16).ok());
}

}  // namespace
}  // namespace moert
