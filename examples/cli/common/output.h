// Where a tool's output goes: tables to stdout, or, with `--json -`, to stderr, so that stdout
// holds the object alone.
#ifndef MOERT_EXAMPLES_CLI_COMMON_OUTPUT_H_
#define MOERT_EXAMPLES_CLI_COMMON_OUTPUT_H_

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace moert::cli {

/// Opens /dev/null in place of standard streams that the caller closed: otherwise the next file
/// opened would get their number, and the output. Call before anything is opened.
void KeepStandardStreams();

/// Prints and never throws, unlike fmt::print, which throws in threads and callbacks too.
/// FlushStdout reports failed writes to stdout; those to stderr are ignored.
template <typename... Args>
void Print(std::FILE* file, fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), file);
}
template <typename... Args>
void Print(fmt::format_string<Args...> format, Args&&... args) {
  Print(stdout, format, std::forward<Args>(args)...);
}

/// Sends to stderr what the process prints to stdout from now on; WriteOutput("-") still reaches
/// the real stdout. Call once, before anything is printed.
void KeepStdoutForJson();

/// Writes `text` to a file, or, for "-", to stdout. Errors name the place and the reason. A link to
/// a file is refused.
absl::Status WriteOutput(const std::string& path, absl::string_view text);

/// Whether writing to `path` would replace something: a file or a folder, but not "-", a device or
/// a pipe.
bool WouldOverwrite(const std::string& path);

/// OK if the folder that `path` lies in exists and takes files, and for "-".
absl::Status CheckPlace(const std::string& path);

/// Flushes stdout. Unavailable if that fails, or something before did: a full disk must not look
/// like success.
absl::Status FlushStdout();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_OUTPUT_H_
