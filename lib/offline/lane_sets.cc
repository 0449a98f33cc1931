// The sets of vector functions that this processor can run.
#include "offline/dense_lanes.h"
#include "offline/dense_lanes_body.h"
#include "offline/hqq_lanes.h"
#include "offline/rtn.h"
#include "offline/rtn_lanes.h"

namespace moert {
namespace {

#if defined(__x86_64__)
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
#endif

/// Best first, then null.
template <typename Lanes>
struct LaneSets {
  const Lanes* sets[4] = {};
  LaneSets(const Lanes* avx512, const Lanes* avx2, const Lanes* plain) {
    int count = 0;
    if (HasAvx512() && avx512 != nullptr) sets[count++] = avx512;
    if (HasAvx2() && avx2 != nullptr) sets[count++] = avx2;
    sets[count] = plain;
  }
};

}  // namespace

const DenseLanes kDenseLanesPlain = DenseLanesOf<16, 4, 2>("plain");

const DenseLanes* const* DenseLaneSets() {
  static const LaneSets<DenseLanes> sets(kDenseLanesAvx512, kDenseLanesAvx2, &kDenseLanesPlain);
  return sets.sets;
}

const RtnLanes* const* RtnLaneSets() {
  static const LaneSets<RtnLanes> sets(kRtnLanesAvx512, kRtnLanesAvx2, nullptr);
  return sets.sets;
}

const RtnLanes* BestRtnLanes() { return RtnLaneSets()[0]; }

bool HasHqqLanes() { return HasAvx512(); }

}  // namespace moert
