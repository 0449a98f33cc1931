// Spinning: polling without sleep for something that another thread is about to do.
#ifndef MOERT_LIB_BASE_SPIN_H_
#define MOERT_LIB_BASE_SPIN_H_

#include <chrono>
#include <thread>

namespace moert {

/// Inside a polling loop: leaves the core to its other hardware thread for some cycles.
inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long a thread may spin without yielding.
inline constexpr std::chrono::microseconds kSpinAlone{50};

/// Beside a device: how long the multiplying thread, the thread that waits for it, and their pool
/// spin if there is a CPU for each of these threads. A layer hands its misses to the CPU as soon as
/// it is routed. On a virtual machine waking a thread takes 50 to 130 us, as long as the CPU needs
/// for a whole expert. The time covers the gap between two such layers, which is some milliseconds
/// if few experts are missing. Spinning threads yield to threads that have work.
inline constexpr std::chrono::microseconds kSpinWithDevice{10'000};

/// Spins until `ready` is true; false if it is not true within `spin`. After kSpinAlone the thread
/// yields, so as not to keep the CPU from a thread that works.
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
