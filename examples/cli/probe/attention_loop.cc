#include "cli/probe/attention_loop.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "cli/common/report.h"
#include "cli/probe/read_bandwidth.h"
#include "moert/thread_pool.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBytes = int64_t{128} << 20;  // beyond any cache
constexpr int64_t kPiece = 16 << 10;            // between two looks at the clock

std::atomic<uint64_t> keep;  // what was read is used: nothing may be optimized away

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionLoop>> AttentionLoop::Create(int threads) {
  auto loop = std::make_unique<AttentionLoop>();
  ThreadPoolOptions options;
  options.threads = threads;
  MOERT_ASSIGN_OR_RETURN(loop->pool_, CreateThreadPool(options));
  MOERT_RETURN_IF_ERROR(loop->buffer_.Reset(kBytes));
  std::memset(loop->buffer_.data(), 1, kBytes);
  return loop;
}

void AttentionLoop::Run(int64_t ns) {
  if (ns <= 0) return;
  const auto deadline = Clock::now() + std::chrono::nanoseconds(ns);
  const int threads = pool_->num_threads();
  pool_->Run(threads, [&](int64_t job, int) {
    const std::byte* data = buffer_.data();
    int64_t at = kBytes / threads * job;
    uint64_t sum = 0;
    while (Clock::now() < deadline) {
      for (int64_t i = 0; i < kPiece; i += 64) {
        uint64_t word;
        std::memcpy(&word, data + (at + i) % kBytes, sizeof(word));
        sum += word;
      }
      at += kPiece;
    }
    keep.fetch_add(sum, std::memory_order_relaxed);
  });
}

double AttentionLoop::ReadBytesPerSecond() {
  std::vector<double> rates(5);
  for (double& rate : rates) rate = ReadBandwidth(pool_.get(), buffer_.data(), kBytes);
  return SpreadOf(rates).median;
}

}  // namespace moert::cli
