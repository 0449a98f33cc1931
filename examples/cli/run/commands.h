// The commands of moert-run. Each parses its arguments (without program and command name), runs,
// and returns the exit status.
#ifndef MOERT_EXAMPLES_CLI_RUN_COMMANDS_H_
#define MOERT_EXAMPLES_CLI_RUN_COMMANDS_H_

namespace moert::cli {

int ChatMain(int argc, const char* const* argv);
int DoctorMain(int argc, const char* const* argv);
int GenerateMain(int argc, const char* const* argv);
int ListMain(int argc, const char* const* argv);
int PplMain(int argc, const char* const* argv);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_RUN_COMMANDS_H_
