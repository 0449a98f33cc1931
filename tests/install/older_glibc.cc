// Takes from glibc what cmake/glibc has substitutes for. Each line of output is one of them, or
// stands on one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Says {
  explicit Says(const char* end) : end(end) {}
  ~Says() { puts(end); }
  const char* end;
};

bool constructed = puts("constructor") != EOF;
Says at_exit("destructor");

// A wait that nobody ends takes the time it was given, that beyond a substitute's one second too.
bool TimesOut(milliseconds time) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const steady_clock::time_point start = steady_clock::now();
  const bool woken = condition.wait_for(lock, time, [] { return false; });
  return !woken && steady_clock::now() - start >= time;
}

bool IsWoken() {
  std::mutex mutex;
  std::condition_variable condition;
  bool ready = false;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(20));
    const std::lock_guard lock(mutex);
    ready = true;
    condition.notify_one();
  });
  std::unique_lock lock(mutex);
  const bool woken =
      condition.wait_for(lock, std::chrono::hours(24 * 365 * 250), [&] { return ready; });
  lock.unlock();
  other.join();
  return woken;
}

void Thread() {
  thread_local Says at_end("thread-local destructor");
  puts(at_end.end[0] == 't' ? "thread" : "");
  try {
    throw std::runtime_error("exception in a thread");
  } catch (const std::exception& error) {
    puts(error.what());
  }
}

bool CountsFile(const char* path) {
  struct stat by_path, by_link, by_file;
  FILE* const file = fopen(path, "rb");
  const bool all = file != nullptr && stat(path, &by_path) == 0 && lstat(path, &by_link) == 0 &&
                   fstat(fileno(file), &by_file) == 0;
  if (file != nullptr) fclose(file);
  const auto size = static_cast<std::uintmax_t>(by_path.st_size);
  return all && by_path.st_size == by_link.st_size && by_path.st_ino == by_file.st_ino &&
         size == std::filesystem::file_size(path) && stat("/no/such", &by_path) == -1;
}

}  // namespace

int main(int, char** argv) {
  if (!constructed) return 1;
  // getenv reads what setenv wrote, and so does a program that reads environ itself.
  setenv("OLDER_GLIBC", "1", 1);
  bool found = false;
  for (char** each = environ; *each != nullptr; ++each)
    found |= strcmp(*each, "OLDER_GLIBC=1") == 0;
  puts(found ? "environment" : "");
  puts(TimesOut(milliseconds(50)) && TimesOut(milliseconds(1300)) ? "wait" : "");
  puts(IsWoken() ? "wake" : "");
  std::thread(Thread).join();
  puts(CountsFile(argv[0]) ? "file" : "");
  return 0;
}
