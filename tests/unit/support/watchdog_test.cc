// A test that hangs ends in time and says where; one that does not is left alone.
#include "support/watchdog.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "support/catch.h"

namespace moert::test {
namespace {

using std::chrono::milliseconds;

struct Ended {
  int code = -1;
  std::string text;  // of standard error
};

/// The end of a process.
template <typename Body>
Ended InChild(const Body& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    body();
    std::_Exit(EXIT_SUCCESS);
  }
  close(ends[1]);
  Ended ended;
  char buffer[512];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    ended.text.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

TEST_CASE("a section that hangs ends the program, with what every rank did last") {
  const Ended ended = InChild([] {
    Watchdog watchdog("two ranks", 2, milliseconds(50));
    watchdog.Note(1, "captures");
    watchdog.Note(1, "waits");
    while (true) std::this_thread::sleep_for(milliseconds(100));
  });
  CHECK(ended.code == EXIT_FAILURE);
  CHECK(ended.text.find("two ranks: not done after 0.") == 0);
  CHECK(ended.text.find("rank 0 begins\n") != std::string::npos);
  CHECK(ended.text.find("rank 1 waits\n") != std::string::npos);
}

TEST_CASE("a section that ends says how long it took") {
  const Ended ended = InChild([] { Watchdog watchdog("one rank", 1, std::chrono::seconds(60)); });
  CHECK(ended.code == EXIT_SUCCESS);
  CHECK(ended.text.find("one rank: 0.") == 0);
}

}  // namespace
}  // namespace moert::test
