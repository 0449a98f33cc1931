// Runs one of the command line tools as a user's script does.
#ifndef MOERT_TESTS_SUPPORT_RUN_TOOL_H_
#define MOERT_TESTS_SUPPORT_RUN_TOOL_H_

#include <sys/wait.h>

#include <cstdlib>
#include <string>

#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert::test {

struct Outcome {
  int status = -1;
  std::string out, err;
};

/// `moert-TOOL ARGS` of `folder` through the shell; `scratch` receives its output.
inline Outcome RunTool(const std::string& tool, const std::string& args, const TempDir& scratch,
                       const std::string& folder = BinDir()) {
  const std::string out = scratch / "stdout", err = scratch / "stderr";
  const std::string command =
      folder + "/moert-" + tool + " " + args + " >" + out + " 2>" + err + " </dev/null";
  Outcome outcome;
  const int raw = std::system(command.c_str());
  REQUIRE(WIFEXITED(raw));
  outcome.status = WEXITSTATUS(raw);
  outcome.out = ReadFile(out);
  outcome.err = ReadFile(err);
  return outcome;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_RUN_TOOL_H_
