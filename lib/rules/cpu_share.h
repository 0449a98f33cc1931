// Which misses of a call the CPU multiplies if the device serves misses: the balancer's rules
// (plan/placement_rule.h), with costs that the host sets.
#ifndef MOERT_LIB_RULES_CPU_SHARE_H_
#define MOERT_LIB_RULES_CPU_SHARE_H_

#include <cstdint>

#include "rules/host_device.h"

namespace moert {

/// Calls of more tokens give the CPU no misses.
constexpr int kMostCpuTokens = 32;

/// The costs of misses, in ns.
struct CpuCosts {
  int64_t load = 0;                         // transfer of a miss to the device
  int64_t start = 0;                        // fixed cost of a job of the CPU
  int64_t read = 0;                         // reading a record that is not pinned, for the CPU
  int64_t tokens[kMostCpuTokens + 1] = {};  // product on the CPU, by tokens; [0] is 0
};

// These functions return how many misses are loaded; the CPU takes the rest. tokens: [misses], the
// tokens of each miss, in descending order. `owed`: ns that the CPU needs for further misses, which
// only it can compute because the device cannot read their records.

/// The split that is done earliest; among equal ones the split that loads more. `busy`: ns until
/// the link is free.
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

/// Algorithm 2 of the importance paper. Loads all misses if the split is not done earlier than
/// that.
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

/// The split by either rule, but at least as many loads as there are free slots: after a captured
/// call nothing loads the experts that the CPU computed, so a cold cache would stay empty.
MOERT_HOST_DEVICE inline int MissesLoaded(const CpuCosts& costs, bool by_completion,
                                          const int32_t* tokens, int misses, int free, int64_t busy,
                                          int64_t owed = 0) {
  const int loaded = by_completion ? LoadedByCompletion(costs, tokens, misses, busy, owed)
                                   : LoadedInTurns(costs, tokens, misses, owed);
  const int filling = free < misses ? free : misses;
  return loaded < filling ? filling : loaded;
}

/// How long the device waits for a job that should take the CPU `planned`, both in ns. A thread
/// that slept, or lost its CPU for a moment, is still in time.
MOERT_HOST_DEVICE inline int64_t CpuPatience(int64_t planned) {
  constexpr int64_t kWaking = 2'000'000;
  return kWaking + 4 * planned;
}

}  // namespace moert

#endif  // MOERT_LIB_RULES_CPU_SHARE_H_
