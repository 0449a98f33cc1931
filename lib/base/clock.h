// The engine's clock: wall time, or a logical time that only the engine itself advances.
#ifndef MOERT_LIB_BASE_CLOCK_H_
#define MOERT_LIB_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace moert {

class VirtualClock;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
  /// This clock, if its time is logical; else null.
  virtual VirtualClock* as_virtual() { return nullptr; }
  virtual bool is_virtual() const { return false; }
};

class WallClock final : public Clock {
 public:
  int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                                start_)
        .count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Read from any thread; advanced under the engine's lock.
class VirtualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_.load(std::memory_order_relaxed); }
  VirtualClock* as_virtual() override { return this; }
  bool is_virtual() const override { return true; }
  /// Never goes back.
  void AdvanceTo(int64_t ns) {
    if (ns > now_ns()) now_.store(ns, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> now_{0};
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_CLOCK_H_
