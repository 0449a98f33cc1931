// Which misses of a call the CPU multiplies, where the device serves them: the balancer's rules
// (plan/placement_rule.h), over costs that the host sets.
#ifndef MOERT_LIB_RULES_CPU_SHARE_H_
#define MOERT_LIB_RULES_CPU_SHARE_H_

#include <cstdint>

#include "rules/host_device.h"

namespace moert {

/// Calls of more tokens give the CPU nothing.
constexpr int kMostCpuTokens = 32;

/// The cost of a miss, in ns.
struct CpuCosts {
  int64_t load = 0;                         // its transfer
  int64_t start = 0;                        // a job of the CPU, beside its experts
  int64_t read = 0;                         // for the CPU, where its record is not pinned
  int64_t tokens[kMostCpuTokens + 1] = {};  // the CPU, by its tokens; of none: nothing
};

// How many misses are loaded; the CPU takes the rest. tokens: [misses] of each, most first.
// `owed`: ns that the CPU takes for misses that nobody but it can compute, since their records are
// not where the device can read them; those are not among these.

/// So that both are done earliest; of equals the split that loads more. `busy`: ns until the link
/// is free.
MOERT_HOST_DEVICE inline int LoadedByCompletion(const CpuCosts& costs, const int32_t* tokens,
                                                int misses, int64_t busy, int64_t owed = 0) {
  int64_t on_cpu = costs.start + owed;
  for (int i = 0; i < misses; ++i) on_cpu += costs.tokens[tokens[i]];
  int64_t best_ns = on_cpu;
  int best = 0;
  for (int i = 0; i < misses; ++i) {
    on_cpu -= costs.tokens[tokens[i]];
    const int64_t link = busy + (i + 1) * costs.load;
    const bool no_job = i + 1 == misses && owed == 0;
    const int64_t done_ns = link > on_cpu || no_job ? link : on_cpu;
    if (done_ns > best_ns) continue;
    best_ns = done_ns;
    best = i + 1;
  }
  return best;
}

/// By Algorithm 2 of the importance paper. All, where that is not done earlier than all loads.
MOERT_HOST_DEVICE inline int LoadedInTurns(const CpuCosts& costs, const int32_t* tokens, int misses,
                                           int64_t owed = 0) {
  int64_t link = 0, on_cpu = owed;
  int left = 0, right = misses;  // [left, right) is undecided
  while (left < right) {
    if (link <= on_cpu) {
      link += costs.load;
      ++left;
    } else {
      on_cpu += costs.tokens[tokens[--right]];
    }
  }
  const int64_t loads = misses * costs.load, all = loads > owed ? loads : owed;
  return link >= all || on_cpu >= all ? misses : left;
}

/// The same by either rule, but that free slots are filled: nobody brings behind a captured call
/// what the CPU computed, and a cold cache would stay empty.
MOERT_HOST_DEVICE inline int MissesLoaded(const CpuCosts& costs, bool by_completion,
                                          const int32_t* tokens, int misses, int free, int64_t busy,
                                          int64_t owed = 0) {
  const int loaded = by_completion ? LoadedByCompletion(costs, tokens, misses, busy, owed)
                                   : LoadedInTurns(costs, tokens, misses, owed);
  const int filling = free < misses ? free : misses;
  return loaded < filling ? filling : loaded;
}

/// How long the device waits for what is `planned` to take the CPU so long, both in ns. A thread
/// that slept, or lost its CPU for a moment, is still in time.
MOERT_HOST_DEVICE inline int64_t CpuPatience(int64_t planned) {
  constexpr int64_t kWaking = 2'000'000;
  return kWaking + 4 * planned;
}

}  // namespace moert

#endif  // MOERT_LIB_RULES_CPU_SHARE_H_
