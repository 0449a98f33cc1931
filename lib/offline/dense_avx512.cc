#include "offline/dense_lanes.h"

#if defined(__AVX512F__)
#include "offline/dense_lanes_body.h"

namespace moert {
namespace {
constexpr DenseLanes kTable = DenseLanesOf<64, 6, 4>("avx512");
}  // namespace
const DenseLanes* const kDenseLanesAvx512 = &kTable;
}  // namespace moert

#else  // another processor family

namespace moert {
const DenseLanes* const kDenseLanesAvx512 = nullptr;
}  // namespace moert

#endif
