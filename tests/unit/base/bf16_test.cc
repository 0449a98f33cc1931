#include "base/bf16.h"

#include <cmath>
#include <limits>

#include "support/catch.h"

namespace moert {
namespace {

TEST_CASE("fp32 to bf16 rounds to nearest, ties to even") {
  CHECK(F32ToBf16(1.0f) == 0x3f80);
  CHECK(F32ToBf16(-2.5f) == 0xc020);
  // 1 + 2^-8 is half-way between 0x3f80 and 0x3f81: to the even one; 1 + 3 * 2^-8 likewise upwards.
  CHECK(F32ToBf16(1.0f + 0x1p-8f) == 0x3f80);
  CHECK(F32ToBf16(1.0f + 0x1p-8f + 0x1p-20f) == 0x3f81);
  CHECK(F32ToBf16(1.0f + 3 * 0x1p-8f) == 0x3f82);
  CHECK(F32ToBf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(F32ToBf16(-0.0f) == 0x8000);
  CHECK(F32ToBf16(std::numeric_limits<float>::infinity()) == 0x7f80);
  CHECK(std::isnan(Bf16ToF32(F32ToBf16(std::numeric_limits<float>::quiet_NaN()))));
  // A NaN whose payload lies in the dropped bits must not become infinity.
  CHECK(std::isnan(Bf16ToF32(F32ToBf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("bf16 survives the way through fp32") {
  for (uint32_t v = 0; v < 0x10000; ++v) {
    const float f = Bf16ToF32(static_cast<uint16_t>(v));
    if (std::isnan(f)) continue;
    REQUIRE(F32ToBf16(f) == v);
  }
}

TEST_CASE("fp16 to fp32") {
  CHECK(F16ToF32(0x3c00) == 1.0f);
  CHECK(F16ToF32(0xc500) == -5.0f);
  CHECK(F16ToF32(0x7bff) == 65504.0f);
  CHECK(F16ToF32(0x0001) == 0x1p-24f);
  CHECK(F16ToF32(0x03ff) == 1023 * 0x1p-24f);
  CHECK(F16ToF32(0x0400) == 0x1p-14f);
  CHECK(std::signbit(F16ToF32(0x8000)));
  CHECK(std::isinf(F16ToF32(0x7c00)));
  CHECK(std::isnan(F16ToF32(0x7c01)));
}

TEST_CASE("fp16 survives the way through fp32, and ties go to even") {
  for (uint32_t v = 0; v < 0x10000; ++v) {
    const float f = F16ToF32(static_cast<uint16_t>(v));
    if (std::isnan(f)) continue;
    REQUIRE(F32ToF16(f) == v);
  }
  CHECK(F32ToF16(1.0f + 0x1p-11f) == 0x3c00);
  CHECK(F32ToF16(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(F32ToF16(65519.0f) == 0x7bff);
  CHECK(F32ToF16(65520.0f) == 0x7c00);
  CHECK(F32ToF16(0x1p-25f) == 0);
  CHECK(F32ToF16(3 * 0x1p-25f) == 2);
}

TEST_CASE("fp8 e4m3 to fp32") {
  CHECK(F8E4M3ToF32(0x38) == 1.0f);
  CHECK(F8E4M3ToF32(0x7e) == 448.0f);
  CHECK(F8E4M3ToF32(0x01) == 0x1p-9f);
  CHECK(F8E4M3ToF32(0x08) == 0x1p-6f);
  CHECK(F8E4M3ToF32(0xb8) == -1.0f);
  CHECK(std::isnan(F8E4M3ToF32(0x7f)));
  CHECK(std::isnan(F8E4M3ToF32(0xff)));
}

}  // namespace
}  // namespace moert
