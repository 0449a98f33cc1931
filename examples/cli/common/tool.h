// The common frame of all tools' commands: help, version, man page, completion, and one place where
// exceptions and failed writes become an exit status.
#ifndef MOERT_EXAMPLES_CLI_COMMON_TOOL_H_
#define MOERT_EXAMPLES_CLI_COMMON_TOOL_H_

#include "absl/types/span.h"

namespace moert::cli {

struct Command {
  const char* name;     // empty: the tool has no commands, and this is what it does
  const char* summary;  // a phrase
  /// Gets the arguments behind the command's name; returns the exit status.
  int (*run)(int argc, const char* const* argv);
};

struct Tool {
  const char* name;
  const char* summary;
  absl::Span<const Command> commands;  // a list that takes no heap: nothing is caught in main
};

/// A tool's main. Beside the commands it has --help (-h), --version, `--help=man` (its man page)
/// and `--help=bash` (completion to be sourced by bash).
int RunTool(const Tool& tool, int argc, const char* const* argv);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_TOOL_H_
