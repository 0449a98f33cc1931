// --backend cuda where there is no device: a clear error, and the CPU goes on working.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "moert/backend.h"
#include "support/catch.h"
#include "support/paths.h"

namespace {

struct Outcome {
  int status = 0;
  std::string output;
};

Outcome Run(const std::string& arguments) {
  const std::string command =
      moert::BinDir() + "/moert-run ppl --model " + moert::SourceDir() + "/examples/models/tiny-moe --tokens " +
      moert::SourceDir() + "/tests/data/eval/humaneval.tokens.u16 --limit 512 " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof(buffer), pipe)) outcome.output.append(buffer, n);
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}

TEST_CASE("a machine without a device says so") {
  if (moert::CudaStatus().ok()) return;  // tests/gpu covers machines with one
  const Outcome cuda = Run("--backend cuda");
  CHECK(cuda.status == 2);
  CHECK(cuda.output.find("--backend cuda") != std::string::npos);
  CHECK(cuda.output.find("legal are cpu and auto") != std::string::npos);
  const Outcome automatic = Run("--backend auto --quiet --json -");
  CHECK(automatic.status == 0);
  CHECK(automatic.output.find("\"backend\":\"cpu\"") != std::string::npos);
}

}  // namespace
