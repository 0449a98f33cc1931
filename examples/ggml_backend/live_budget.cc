#include "live_budget.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "options.h"

namespace moert_ggml {
namespace {

// A budget is a few characters long; the rest of a longer file is not read.
constexpr size_t kMostText = 64;

// False: `text` holds the reason.
bool ReadText(const std::string& path, std::string* text) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    *text = std::string("cannot be opened: ") + std::strerror(errno);
    return false;
  }
  struct stat info = {};
  char bytes[kMostText];
  const bool file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const ssize_t count = file ? read(fd, bytes, sizeof bytes) : -1;
  *text = file ? std::string("cannot be read: ") + std::strerror(errno) : "is no regular file";
  close(fd);
  if (count < 0) return false;
  text->assign(bytes, static_cast<size_t>(count));
  text->erase(0, text->find_first_not_of(" \t\r\n"));
  text->erase(text->find_last_not_of(" \t\r\n") + 1);
  return true;
}

// Printable.
std::string Shown(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace

bool BudgetFile::Read(int64_t* bytes, double* fraction, std::string* error) {
  last_.reset();
  return ReadChanged(bytes, fraction, error);
}

bool BudgetFile::ReadChanged(int64_t* bytes, double* fraction, std::string* error) {
  std::string text;
  const bool read = ReadText(path_, &text);
  if (text == last_) return false;
  last_ = text;
  int64_t found = 0;
  double share = 0;
  if (read && !text.empty() && ReadBudget(text.c_str(), &found, &share)) {
    *bytes = found;
    *fraction = share;
    return true;
  }
  *error = "MOERT_BUDGET_FILE: " + path_ + " " +
           (read ? "has \"" + Shown(text) + "\", legal is " + kLegalBudget : text);
  return false;
}

int64_t FollowFree(const MemoryNow& now, int64_t reserve) {
  if (now.free < 0) return now.budget;
  const int64_t left = now.free - (now.budget - now.held);  // when the budget is used
  if (left >= reserve / 2 && left <= 2 * reserve) return now.budget;
  return std::clamp(now.budget + left - reserve, now.least, std::max(now.least, now.most));
}

}  // namespace moert_ggml
