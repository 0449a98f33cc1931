// Vector versions of what rounding to nearest spends its time on. Declared apart from rtn.h: files
// compiled for an instruction set include no shared inline code.
#ifndef MOERT_LIB_OFFLINE_RTN_LANES_H_
#define MOERT_LIB_OFFLINE_RTN_LANES_H_

#include <cstdint>

namespace moert {

/// Whether this processor runs the functions below. The answer never changes a result.
bool HasRtnLanes();

/// sums[i], i < candidates: the sum over values of |u - round(clamp(u, 0, top))|^2.4 with
/// u = value * inverse[i] + zero[i], within a relative 1e-5 and 1e-7 a value.
void RtnErrorSumsAvx512(const float* values, int count, float top, const float* inverse,
                        const float* zero, int candidates, float* sums);

/// out[i] = x[i]^2.4 within a relative 2e-6, x[i] in [3e-7, 500].
void RtnPowersAvx512(const float* x, int count, float* out);

/// codes[i] = round(clamp((value + offset) / scale + middle, 0, top)), bit for bit as RoundToCode.
void RtnCodesAvx512(const float* values, int count, float scale, float offset, float middle,
                    float top, uint8_t* codes);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_RTN_LANES_H_
