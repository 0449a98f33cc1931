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
