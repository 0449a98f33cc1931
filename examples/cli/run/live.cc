#include "cli/run/live.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "cli/common/output.h"
#include "util/bytes_text.h"

namespace moert::cli {

std::string LiveText(const EngineStats& before, const EngineStats& now, double seconds,
                     int64_t tokens) {
  const EngineStats d = StatsSince(now, before);
  const auto share = [&](int64_t ns) { return 1e-7 * static_cast<double>(ns) / seconds; };
  std::string text = fmt::format(
      "{:.1f} tokens/s | hits {}, {} loads | {}/s read | fast tier {} of {}",
      static_cast<double>(tokens) / seconds,
      d.lookups == 0 ? "-" : fmt::format("{:.1f} %", 100 * d.hit_ratio()), d.loads,
      util::BytesText(std::llround(static_cast<double>(d.bytes_loaded) / seconds)),
      util::BytesText(now.pool_bytes + now.fixed_bytes), util::BytesText(now.budget_bytes));
  if (StalledNs(d) == 0) return text;
  text += fmt::format(" | stalled {:.0f} %:", share(StalledNs(d)));
  if (d.stall_miss_ns > 0) text += fmt::format(" miss {:.0f}", share(d.stall_miss_ns));
  if (d.stall_queue_ns > 0) text += fmt::format(" queue {:.0f}", share(d.stall_queue_ns));
  if (d.stall_cpu_ns > 0) text += fmt::format(" cpu {:.0f}", share(d.stall_cpu_ns));
  return text;
}

Live::Live(const Engine* engine, bool enabled) : engine_(engine) {
  if (enabled) thread_ = std::thread([this] { Show(); });
}

Live::~Live() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Live::Show() {
  const bool redraw = isatty(STDERR_FILENO) == 1 && isatty(STDOUT_FILENO) == 0;
  EngineStats before = engine_->stats();
  int64_t tokens_before = tokens_.load();
  auto then = std::chrono::steady_clock::now();
  bool end = false;
  while (!end) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      end = ended_.wait_for(lock, std::chrono::milliseconds(500), [this] { return end_; });
    }
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> took = now - then;
    const EngineStats stats = engine_->stats();
    const int64_t tokens = tokens_.load();
    const std::string text = LiveText(before, stats, took.count(), tokens - tokens_before);
    Print(stderr, "{}{}{}", redraw ? "\r\033[K" : "", text, redraw && !end ? "" : "\n");
    std::fflush(stderr);
    before = stats;
    tokens_before = tokens;
    then = now;
  }
}

}  // namespace moert::cli
