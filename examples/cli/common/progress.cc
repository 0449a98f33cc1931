#include "cli/common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace moert::cli {

Progress::Progress(std::string what, bool enabled)
    : what_(std::move(what)), enabled_(enabled && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::Update(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || total <= 0 || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  shown_ = true;
  fmt::print(stderr, "\r\033[K{}: {} of {} ({}%)", what_, done, total, 100 * done / total);
  std::fflush(stderr);
}

}  // namespace moert::cli
