// Catch2 2.13 (Debian 12) and 3 are both accepted; tests include this header only.
#ifndef MOERT_TESTS_SUPPORT_CATCH_H_
#define MOERT_TESTS_SUPPORT_CATCH_H_

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace Catch {
using Matchers::EndsWith;
using Matchers::StartsWith;
inline auto Contains(const std::string& s) { return Matchers::ContainsSubstring(s); }
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif

/// Requires an absl::Status (or StatusOr's status) to be OK and shows its message if not.
#define REQUIRE_OK(expr)                     \
  do {                                       \
    const absl::Status require_ok_ = (expr); \
    INFO(require_ok_.ToString());            \
    REQUIRE(require_ok_.ok());               \
  } while (false)

#endif  // MOERT_TESTS_SUPPORT_CATCH_H_
