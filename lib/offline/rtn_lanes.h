// Vector versions of what rounding to nearest spends its time on. Declared apart from rtn.h: files
// compiled for an instruction set include no shared inline code.
#ifndef MOERT_LIB_OFFLINE_RTN_LANES_H_
#define MOERT_LIB_OFFLINE_RTN_LANES_H_

#include <cstdint>

namespace moert {

/// Whether this processor runs the functions below. The answer never changes a result.
bool HasRtnLanes();

/// The least and the largest value, and zero.
void RtnRangeAvx512(const float* values, int count, float* low, float* high);

/// The sum over values of |u - round(clamp(u, 0, top))|^2.4 with u = value * inverse + zero, within
/// a relative 1e-5 and 1e-7 a value.
float RtnErrorSumAvx512(const float* values, int count, float top, float inverse, float zero);

/// sums[i], i < candidates: the same under (inverse[i], zero[i]) in fewer steps, within 8e-5 a
/// value where nothing is clamped; otherwise no more than that above it.
void RtnLeastSumsAvx512(const float* values, int count, float top, const float* inverse,
                        const float* zero, int candidates, float* sums);

/// The sum over values of (|scale * f - value| / (scale * largest))^2.4 with f the nearest to
/// value / scale of the 8-bit (e4m3) or the 4-bit (e2m1) floats, within a relative 5e-5.
float RtnFloatErrorSumAvx512(bool fp8, const float* values, int count, float scale);

/// out[i] = x[i]^2.4 within a relative 2e-6, x[i] in [3e-7, 500].
void RtnPowersAvx512(const float* x, int count, float* out);

/// codes[i]: of the float that is nearest to value / scale, bit for bit as RoundToCode.
void RtnFloatCodesAvx512(bool fp8, const float* values, int count, float scale, uint8_t* codes);

/// codes[i] = round(clamp((value + offset) / scale + middle, 0, top)), bit for bit as RoundToCode.
void RtnCodesAvx512(const float* values, int count, float scale, float offset, float middle,
                    float top, uint8_t* codes);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_LANES_H_
