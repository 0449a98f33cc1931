#include "offline/hqq_lanes.h"
#include "offline/processor.h"
#include "offline/rtn.h"
#include "offline/rtn_lanes.h"

namespace moert {
namespace {

struct Sets {
  const RtnLanes* sets[3] = {};
  Sets() {
    int count = 0;
    if (HasAvx512() && kRtnLanesAvx512 != nullptr) sets[count++] = kRtnLanesAvx512;
    if (HasAvx2() && kRtnLanesAvx2 != nullptr) sets[count++] = kRtnLanesAvx2;
  }
};

}  // namespace

const RtnLanes* const* RtnLaneSets() {
  static const Sets sets;
  return sets.sets;
}

const RtnLanes* BestRtnLanes() { return RtnLaneSets()[0]; }

bool HasHqqLanes() { return HasAvx512(); }

}  // namespace moert
