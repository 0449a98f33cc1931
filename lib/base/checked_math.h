// Integer arithmetic that reports overflow instead of wrapping. Every size that is computed from a
// file's or a caller's numbers goes through here.
#ifndef MOERT_LIB_BASE_CHECKED_MATH_H_
#define MOERT_LIB_BASE_CHECKED_MATH_H_

#include <optional>
#include <type_traits>

namespace moert {

template <typename T>
constexpr std::optional<T> CheckedAdd(T a, T b) {
  static_assert(std::is_integral_v<T>);
  T r{};
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

template <typename T>
constexpr std::optional<T> CheckedMul(T a, T b) {
  static_assert(std::is_integral_v<T>);
  T r{};
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

/// The smallest multiple of `multiple` that is not below `a`; a >= 0 and multiple > 0, else
/// nullopt.
template <typename T>
constexpr std::optional<T> CheckedRoundUp(T a, T multiple) {
  static_assert(std::is_integral_v<T>);
  if (a < 0 || multiple <= 0) return std::nullopt;
  const T rest = a % multiple;
  if (rest == 0) return a;
  return CheckedAdd<T>(a, multiple - rest);
}

/// A running product or sum that remembers whether any step overflowed.
template <typename T>
class Checked {
 public:
  constexpr explicit Checked(T v) : value_(v) {}
  constexpr Checked& Add(T v) { return Apply(value_ ? CheckedAdd<T>(*value_, v) : value_); }
  constexpr Checked& Mul(T v) { return Apply(value_ ? CheckedMul<T>(*value_, v) : value_); }
  constexpr Checked& RoundUp(T multiple) {
    return Apply(value_ ? CheckedRoundUp<T>(*value_, multiple) : value_);
  }
  constexpr std::optional<T> value() const { return value_; }

 private:
  constexpr Checked& Apply(std::optional<T> v) {
    value_ = v;
    return *this;
  }
  std::optional<T> value_;
};

/// Without checks, for sizes that are known to be small.
template <typename T>
constexpr T RoundUp(T a, std::type_identity_t<T> multiple) {
  return (a + multiple - 1) / multiple * multiple;
}

template <typename T>
constexpr T CeilDiv(T a, std::type_identity_t<T> b) {
  return (a + b - 1) / b;
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_CHECKED_MATH_H_
