#include "offline/dense_lanes.h"

#include "offline/dense_lanes_body.h"
#include "offline/processor.h"

namespace moert {
namespace {

struct DenseSets {
  const DenseLanes* sets[4] = {};
  DenseSets() {
    int count = 0;
    if (HasAvx512() && kDenseLanesAvx512 != nullptr) sets[count++] = kDenseLanesAvx512;
    if (HasAvx2() && kDenseLanesAvx2 != nullptr) sets[count++] = kDenseLanesAvx2;
    sets[count] = &kDenseLanesPlain;
  }
};

}  // namespace

const DenseLanes kDenseLanesPlain = DenseLanesOf<16, 4, 2>("plain");

const DenseLanes* const* DenseLaneSets() {
  static const DenseSets sets;
  return sets.sets;
}

}  // namespace moert
