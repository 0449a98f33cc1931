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
