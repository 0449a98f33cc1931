// Dot products of a gate's row with the inputs of several tokens.
#ifndef MOERT_LIB_ROUTE_GATE_DOTS_H_
#define MOERT_LIB_ROUTE_GATE_DOTS_H_

#include <cstdint>

namespace moert {

/// out[t * out_stride] = x[t * n ..] . gate, for t < tokens. Sums of 16 lanes, whose order of
/// additions depends on n alone: the same bits for any number of tokens, on any processor.
void GateDots(const float* x, int64_t tokens, const float* gate, int64_t n, float* out,
              int64_t out_stride);

/// The same, using only instructions of the compiler's target.
void PlainGateDots(const float* x, int64_t tokens, const float* gate, int64_t n, float* out,
                   int64_t out_stride);

}  // namespace moert

#endif  // MOERT_LIB_ROUTE_GATE_DOTS_H_
