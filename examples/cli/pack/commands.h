// The commands of moert-pack. Each parses its arguments (without program and command name), runs,
// and returns the exit status.
#ifndef MOERT_EXAMPLES_CLI_PACK_COMMANDS_H_
#define MOERT_EXAMPLES_CLI_PACK_COMMANDS_H_

namespace moert::cli {

int QuantizeMain(int argc, const char* const* argv);
int CacheMain(int argc, const char* const* argv);
int CalibrateMain(int argc, const char* const* argv);
int AllocateMain(int argc, const char* const* argv);
int InfoMain(int argc, const char* const* argv);
int VerifyMain(int argc, const char* const* argv);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_COMMANDS_H_
