#include "cli/probe/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace moert::cli {
namespace {

// Four sums in plain registers: one would be a chain of additions, an array would live in memory.
typedef uint64_t Vector __attribute__((vector_size(16)));

uint64_t Sum(const std::byte* data, int64_t bytes) {
  const auto* v = reinterpret_cast<const Vector*>(data);
  const int64_t count = bytes / 64 * 4;
  Vector a = {}, b = {}, c = {}, d = {};
  for (int64_t i = 0; i < count; i += 4) {
    // The hardware prefetcher alone is slower; kernels fetch ahead too.
    __builtin_prefetch(v + i + 192);
    a += v[i];
    b += v[i + 1];
    c += v[i + 2];
    d += v[i + 3];
  }
  const Vector sum = a + b + c + d;
  return sum[0] + sum[1];
}

}  // namespace

double ReadBandwidth(ThreadPool* pool, const std::byte* data, int64_t bytes) {
  constexpr int64_t kJob = 256 << 10;
  const int64_t jobs = (bytes + kJob - 1) / kJob;
  std::atomic<uint64_t> sink{0};
  const auto start = std::chrono::steady_clock::now();
  pool->Run(jobs, [&](int64_t job, int) {
    const int64_t begin = job * kJob;
    sink.fetch_add(Sum(data + begin, std::min(kJob, bytes - begin)), std::memory_order_relaxed);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  static std::atomic<uint64_t> keep;  // the sums are used: nothing may be optimized away
  keep.store(sink.load());
  return static_cast<double>(bytes) / seconds.count();
}

}  // namespace moert::cli
