// Where a tool's output goes: tables to stdout, or, with `--json -`, to stderr, so that stdout
// holds the object alone.
#ifndef MOERT_EXAMPLES_CLI_COMMON_OUTPUT_H_
#define MOERT_EXAMPLES_CLI_COMMON_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moert::cli {

/// From here on what the process prints to stdout goes to stderr; WriteOutput("-") still reaches
/// the real stdout. Once, before anything is printed.
void KeepStdoutForJson();

/// Writes `text` to a file, or, for "-", to stdout. Errors name the place and the reason.
absl::Status WriteOutput(const std::string& path, absl::string_view text);

/// Whether writing to `path` would replace something: a file or a folder, but not "-", a device or
/// a pipe.
bool WouldOverwrite(const std::string& path);

/// Flushes stdout. Unavailable if that fails, or something before did: a full disk must not look
/// like success.
absl::Status FlushStdout();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_OUTPUT_H_
