// Killing `moert-pack quantize` at random points leaves nothing, or a run that can be gone on with.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Clock = std::chrono::steady_clock;
using test::TempDir;

std::map<std::string, std::string> Files(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const auto& e : std::filesystem::directory_iterator(dir)) {
    files[e.path().filename().string()] = test::ReadFile(e.path().string());
  }
  return files;
}

pid_t Start(const std::string& out, const std::vector<std::string>& method) {
  const std::string tool = BinDir() + "/moert-pack", model = TinyModelDir();
  std::vector<std::string> args = {tool,    "quantize", "--quiet",   "--model",       model,
                                   "--out", out,        "--schemes", "w2a16_g-1_asym"};
  args.insert(args.end(), method.begin(), method.end());
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::execv(tool.c_str(), argv.data());
    ::_exit(127);
  }
  return pid;
}

// True if the process ended by itself, and well, before `deadline`; else it is killed.
bool WaitOrKill(pid_t pid, Clock::time_point deadline) {
  int status = 0;
  while (Clock::now() < deadline) {
    if (::waitpid(pid, &status, WNOHANG) == pid) {
      REQUIRE(WIFEXITED(status));
      REQUIRE(WEXITSTATUS(status) == 0);
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(pid, SIGKILL);
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (!WIFEXITED(status)) return false;  // else it was done just now
  REQUIRE(WEXITSTATUS(status) == 0);
  return true;
}

void KillAndResume(int to_kill, const std::vector<std::string>& method, int least_resumed,
                   int least_completed) {
  TempDir dir;
  const auto began = Clock::now();
  REQUIRE(WaitOrKill(Start(dir / "whole", method), Clock::time_point::max()));
  const auto whole_time = Clock::now() - began;
  const auto expected = Files(dir / "whole");
  std::mt19937 rng(20240611);
  std::uniform_real_distribution<double> share(0, 0.6);
  int kills = 0, resumed = 0, completed = 0;
  const std::string out = dir / "pack";
  while (true) {
    resumed += std::filesystem::exists(out + ".partial") ? 1 : 0;
    const pid_t pid = Start(out, method);
    const auto deadline =
        kills < to_kill
            ? Clock::now() + std::chrono::duration_cast<Clock::duration>(whole_time * share(rng))
            : Clock::time_point::max();
    const bool done = WaitOrKill(pid, deadline);
    kills += done ? 0 : 1;
    if (!std::filesystem::exists(out)) {
      REQUIRE_FALSE(done);
      continue;
    }
    // There may be a folder to clean up, but what is at the final place is whole.
    REQUIRE(Files(out) == expected);
    ++completed;
    if (kills >= to_kill && completed > least_completed) break;
    std::filesystem::remove_all(out);
    std::filesystem::remove_all(out + ".partial");
  }
  INFO(kills << " kills, " << resumed << " runs went on with an earlier one, " << completed
             << " packs");
  CHECK(resumed > least_resumed);
  CHECK(Files(out) == expected);
}

TEST_CASE("100 kills at random points of quantize") { KillAndResume(100, {}, 10, 2); }

// Tokens that went through an interrupted layer must reach the next one as if nothing had happened.
TEST_CASE("150 kills at random points of a calibrated run") {
  KillAndResume(150,
                {"--method", "gptq", "--hadamard", "--tokens", EvalDir() + "/gsm8k.tokens.u16",
                 "--calibration-tokens", "8192"},
                10, 2);
}

}  // namespace
}  // namespace moert
