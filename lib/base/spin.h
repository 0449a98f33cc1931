// Looking for something that another thread is about to do, without sleeping.
#ifndef MOERT_LIB_BASE_SPIN_H_
#define MOERT_LIB_BASE_SPIN_H_

#include <chrono>
#include <thread>

namespace moert {

/// Inside a loop that looks: leaves the core to its other thread for some cycles.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// For so long one may look without giving way.
inline constexpr std::chrono::microseconds kSpinAlone{50};

/// Beside a device: how long the thread that multiplies, who waits for it, and the pool they share
/// stay awake where there is a CPU for each of these threads. A layer hands its misses to the CPU
/// as soon as it is routed; on a virtual machine waking a thread takes 50 to 130 us, as long as the
/// CPU needs for a whole expert. Longer than from one such layer to the next: where little is
/// missing, they are some milliseconds apart. Those that look for work give way to whoever has any.
inline constexpr std::chrono::microseconds kSpinWithDevice{10'000};

/// True when `ready` came true within `spin`. One that looks for longer than kSpinAlone must not
/// keep the CPU from a thread that works.
template <typename Ready>
bool SpinFor(std::chrono::microseconds spin, const Ready& ready) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto now = begin; now < begin + spin; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      Pause();
    }
    if (now >= begin + kSpinAlone) std::this_thread::yield();
  }
  return ready();
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_SPIN_H_
