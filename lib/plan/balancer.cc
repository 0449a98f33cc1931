#include "plan/balancer.h"

#include <algorithm>
#include <numeric>

namespace moert {

Balance BalanceCpuLoad(absl::Span<const BalanceItem> items, int64_t loading_ns) {
  Balance balance;
  balance.load_ns = loading_ns;
  balance.on_cpu.assign(items.size(), 0);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return items[a].tokens > items[b].tokens; });
  size_t left = 0, right = order.size();  // [left, right) is undecided
  while (left < right) {
    if (balance.load_ns <= balance.cpu_ns) {
      balance.load_ns += items[order[left++]].load_ns;
    } else {
      const size_t item = order[--right];
      balance.cpu_ns += items[item].cpu_ns;
      balance.on_cpu[item] = 1;
    }
  }
  return balance;
}

}  // namespace moert
