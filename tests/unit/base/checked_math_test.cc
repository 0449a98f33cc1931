#include "base/checked_math.h"

#include <cstdint>

#include "support/catch.h"

namespace moert {
namespace {

TEST_CASE("checked arithmetic reports overflow") {
  CHECK(CheckedAdd<int64_t>(2, 3) == 5);
  CHECK_FALSE(CheckedAdd<int64_t>(INT64_MAX, 1));
  CHECK_FALSE(CheckedAdd<uint64_t>(UINT64_MAX, 1));
  CHECK(CheckedMul<int64_t>(int64_t{1} << 31, int64_t{1} << 31) == int64_t{1} << 62);
  CHECK_FALSE(CheckedMul<int64_t>(int64_t{1} << 32, int64_t{1} << 31));
  // The product that wraps to exactly 0.
  CHECK_FALSE(CheckedMul<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32));
}

TEST_CASE("rounding up does not wrap before it is checked") {
  CHECK(CheckedRoundUp<int64_t>(0, 4096) == 0);
  CHECK(CheckedRoundUp<int64_t>(1, 4096) == 4096);
  CHECK(CheckedRoundUp<int64_t>(4096, 4096) == 4096);
  CHECK_FALSE(CheckedRoundUp<int64_t>(INT64_MAX, 4096));
  CHECK_FALSE(CheckedRoundUp<int64_t>(-1, 4096));
  CHECK_FALSE(CheckedRoundUp<int64_t>(1, 0));
}

TEST_CASE("a chain remembers an overflow") {
  CHECK(Checked<int64_t>(3).Mul(4).Add(1).RoundUp(16).value() == 16);
  CHECK_FALSE(Checked<int64_t>(INT64_MAX).Mul(2).Mul(0).value());
}

}  // namespace
}  // namespace moert
