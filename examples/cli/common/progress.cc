#include "cli/common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <utility>

#include "cli/common/output.h"
#include "util/bytes_text.h"

namespace moert::cli {
namespace {

std::string Duration(double seconds) {
  const int64_t s = std::llround(seconds);
  if (s < 120) return fmt::format("{} s", s);
  if (s < 7200) return fmt::format("{} min", (s + 30) / 60);
  return fmt::format("{:.1f} h", static_cast<double>(s) / 3600);
}

}  // namespace

std::string ProgressText(const std::string& what, int64_t done, int64_t total, double seconds,
                         bool bytes) {
  if (total <= 0) return fmt::format("{}: {}", what, Duration(seconds));
  const auto count = [&](int64_t n) { return bytes ? util::BytesText(n) : fmt::format("{}", n); };
  std::string text =
      fmt::format("{}: {} of {} ({}%)", what, count(done), count(total),
                  static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
  if (done <= 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += bytes ? fmt::format(", {}/s", util::BytesText(std::llround(rate)))
                : fmt::format(", {:.3g}/s", rate);
  return text + fmt::format(", {} left", Duration(static_cast<double>(total - done) / rate));
}

Progress::Progress(std::string what, bool enabled, bool bytes)
    : what_(std::move(what)), bytes_(bytes) {
  if (enabled && isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { Draw(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Progress::Draw() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool shown = false;
  auto next = begin_ + std::chrono::seconds(1);
  while (!ended_.wait_until(lock, next, [this] { return end_; })) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
    Print(stderr, "\r\033[K{}",
          ProgressText(what_, done_.load(std::memory_order_relaxed),
                       total_.load(std::memory_order_relaxed), took.count(), bytes_));
    std::fflush(stderr);
    shown = true;
    next = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  }
  if (shown) std::fputs("\r\033[K", stderr);
}

}  // namespace moert::cli
