// BudgetTracker: the bytes of one memory tier, reserved before they are taken (DynaExq Sec. 4.3).
// Thread-safe and lock-free.
#ifndef MOERT_LIB_STORE_BUDGET_TRACKER_H_
#define MOERT_LIB_STORE_BUDGET_TRACKER_H_

#include <atomic>
#include <cstdint>

namespace moert {

class BudgetTracker {
 public:
  explicit BudgetTracker(int64_t limit) : limit_(limit) {}

  /// False, with nothing changed, when `bytes` more would exceed the limit.
  bool TryReserve(int64_t bytes) {
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (used + bytes > limit_.load(std::memory_order_relaxed)) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (used + bytes > peak &&
           !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
    }
    return true;
  }
  void Release(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  /// A limit below what is used refuses every reservation until enough was released.
  void SetLimit(int64_t limit) { limit_.store(limit, std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> limit_;
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> peak_{0};
};

}  // namespace moert

#endif  // MOERT_LIB_STORE_BUDGET_TRACKER_H_
