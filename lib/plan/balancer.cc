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

Balance BalanceByCompletion(absl::Span<const BalanceItem> items, int64_t link_busy_ns,
                            int64_t loading_ns) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return items[a].tokens > items[b].tokens; });
  int64_t load_ns = loading_ns, cpu_ns = 0;
  for (const BalanceItem& item : items) cpu_ns += item.cpu_ns;
  int64_t best_ns = std::max(loading_ns > 0 ? link_busy_ns + loading_ns : 0, cpu_ns);
  size_t best = 0;  // items loaded
  for (size_t loaded = 1; loaded <= order.size(); ++loaded) {
    const BalanceItem& item = items[order[loaded - 1]];
    load_ns += item.load_ns;
    cpu_ns -= item.cpu_ns;
    const int64_t done_ns = std::max(link_busy_ns + load_ns, cpu_ns);
    if (done_ns > best_ns) continue;
    best_ns = done_ns;
    best = loaded;
  }
  Balance balance;
  balance.load_ns = loading_ns;
  balance.on_cpu.assign(items.size(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    const BalanceItem& item = items[order[i]];
    balance.on_cpu[order[i]] = i >= best;
    (i < best ? balance.load_ns : balance.cpu_ns) += i < best ? item.load_ns : item.cpu_ns;
  }
  return balance;
}

}  // namespace moert
