#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace moert {
namespace {

std::atomic<int> forks{0};

// Registered before main. A counter is cheaper per call than getpid().
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

int ForkCount() { return forks.load(std::memory_order_relaxed); }

}  // namespace moert
