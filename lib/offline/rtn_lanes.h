// The costly functions of round-to-nearest by vector instructions: a table of functions per
// instruction set. Declared apart from rtn.h: files compiled for an instruction set include no
// shared inline code.
#ifndef MOERT_LIB_OFFLINE_RTN_LANES_H_
#define MOERT_LIB_OFFLINE_RTN_LANES_H_

#include <cstdint>

namespace moert {

/// Ranges of codes: weight = code * scale[i] - offset[i]; with zero points, (code - offset[i]) *
/// scale[i]. Codes go from `bottom` to bottom + span.
struct RtnRanges {
  const float* scale;
  const float* offset;
  int count;
  float bottom, span;
  bool zero_points;
};

/// How integer codes are scaled.
struct RtnForm {
  enum Offsets { kNone, kOffsets, kZeroPoints };

  float steps;  // kNone: on the longer side of zero
  Offsets offsets;
  bool half;  // scales are binary16, not bf16
};

struct RtnLanes {
  const char* name;

  /// Reorders the values and finds their minimum and maximum, zero included. Returns the number of
  /// values at the front that include all likely to lie outside of ranges. out: room for `count`.
  int (*arrange)(const float* values, int count, float* out, float* low, float* high);

  /// Computes the scales for [low, high] times each share in their stored form, and the offsets
  /// (bf16) or the zero points.
  void (*spread)(const RtnForm& form, float low, float high, const float* shares, int count,
                 float* scale, float* offset);

  /// out[i]: the error of range i at `low` and `high` alone, in units of unit^2.4, approximately.
  void (*cut_errors)(const RtnRanges& ranges, float low, float high, float unit, float* out);

  /// The sum over values of |u - round(clamp(u, 0, top))|^2.4 with u = value * inverse + zero,
  /// within a relative 1e-5 and 1e-7 a value.
  float (*error_sum)(const float* values, int count, float top, float inverse, float zero);

  /// errors[i]: unit[i] times that sum for range i, computed with fewer operations, at most 8e-5
  /// per value above it, less the share `relative` of it and `slack`. Values after the first
  /// `outer` are treated as within the range. Returns the least.
  float (*least_errors)(const float* values, int count, int outer, const RtnRanges& ranges,
                        const float* unit, float relative, float slack, float* errors);

  /// The sum over values of (|scale * f - value| / (scale * largest))^2.4 with f the nearest to
  /// value / scale of the 8-bit (e4m3) or the 4-bit (e2m1) floats, within a relative 5e-5.
  float (*float_error_sum)(bool fp8, const float* values, int count, float scale);

  /// out[i] = (x[i] * factor)^2.4 within a relative 2e-6, x[i] * factor in [3e-7, 500].
  void (*powers)(const float* x, int count, float factor, float* out);

  /// codes[i]: of the float that is nearest to value / scale, bit for bit as RoundToCode.
  void (*float_codes)(bool fp8, const float* values, int count, float scale, uint8_t* codes);

  /// codes[i] = round(clamp((value + offset) / scale + middle, 0, top)), as RoundToCode.
  void (*codes)(const float* values, int count, float scale, float offset, float middle, float top,
                uint8_t* codes);
};

/// The tables that this processor can run, best first, then null. The choice never changes a
/// result.
const RtnLanes* const* RtnLaneSets();

// Null if the compiler has no such instructions.
extern const RtnLanes* const kRtnLanesAvx512;
extern const RtnLanes* const kRtnLanesAvx2;

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_LANES_H_
