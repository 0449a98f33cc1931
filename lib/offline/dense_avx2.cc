#include "offline/dense_lanes.h"

#if defined(__AVX2__)
#include "offline/dense_lanes_body.h"

namespace moert {
namespace {
constexpr DenseLanes kTable = DenseLanesOf<32, 6, 2>("avx2");
}  // namespace
const DenseLanes* const kDenseLanesAvx2 = &kTable;
}  // namespace moert

#else  // another processor family

namespace moert {
const DenseLanes* const kDenseLanesAvx2 = nullptr;
}  // namespace moert

#endif
