// A declarative flag parser for the command line tools: a flag is a name, a destination for its
// value and a help line. Errors name the legal flags or values; the tools exit with status 2 on
// them. Help, man pages and shell completion are all made from the same declarations, which is why
// this is not CLI11: that has neither of the latter two, and takes seconds to compile in every
// file.
#ifndef MOERT_EXAMPLES_CLI_COMMON_ARGS_H_
#define MOERT_EXAMPLES_CLI_COMMON_ARGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moert::cli {

/// Exit status of the tools (stable, users script against it).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

/// Parses `--name VALUE`, `--name=VALUE`, bare `--switch` and positional arguments. Every Add*
/// borrows its destination, which keeps its value (the default) when the flag is absent. A flag may
/// be given once. `--` ends the flags. Not thread-safe.
class ArgParser {
 public:
  /// `command` as the user types it ("moert-bench gemm"), `summary` one line.
  ArgParser(std::string command, std::string summary)
      : command_(std::move(command)), summary_(std::move(summary)) {}

  void AddString(std::string name, std::string* value, std::string help);
  /// An integer in [min, max].
  void AddInt(std::string name, int* value, std::string help, int min = INT32_MIN,
              int max = INT32_MAX);
  void AddInt64(std::string name, int64_t* value, std::string help, int64_t min = INT64_MIN,
                int64_t max = INT64_MAX);
  void AddDouble(std::string name, double* value, std::string help);
  /// A comma-separated list of integers >= min.
  void AddIntList(std::string name, std::vector<int>* value, std::string help, int min = INT32_MIN);
  /// Bytes: see ParseSize.
  void AddSize(std::string name, int64_t* bytes, std::string help);
  /// One of `choices`; the error lists them.
  void AddChoice(std::string name, std::string* value, std::vector<std::string> choices,
                 std::string help);
  /// Takes no value: present means true.
  void AddSwitch(std::string name, bool* value, std::string help);
  /// A file or folder that the command writes. One that is there already is refused unless --force,
  /// which every parser with an output has, is given. "-" and devices may always be written.
  void AddOutput(std::string name, std::string* path, std::string help);
  /// --json FILE: an output. With "-", stdout receives the object alone, and all other output goes
  /// to stderr (cli/common/output.h).
  void AddJson(std::string* path);
  /// --quiet. `what`: what it leaves out, for the help.
  void AddQuiet(bool* quiet, std::string what);
  /// Values that shell completion offers; the flag takes others, too.
  void Suggest(absl::string_view name, const std::vector<std::string>& values);
  /// Positional arguments are filled in the order they were added.
  void AddPositional(std::string name, std::string* value, std::string help, bool required = true);
  /// Parse fails unless the flag was given.
  void Require(absl::string_view name);

  /// argv without the program's (and subcommand's) name. InvalidArgument on anything unknown,
  /// repeated, missing or out of range, AlreadyExists for an output that would be overwritten;
  /// InvalidArgument, too, for one in a folder that is not there or takes no files.
  /// After `--help` or `-h` it returns OK with help_requested() set and leaves the rest unchecked.
  absl::Status Parse(int argc, const char* const* argv);
  /// Parse for a command's main: returns the exit status if an error or the help has been printed,
  /// else nothing.
  std::optional<int> ParseOrReport(int argc, const char* const* argv);
  bool help_requested() const { return help_requested_; }
  /// True when the flag was given.
  bool Given(absl::string_view name) const;
  /// Whether outputs may be overwritten.
  bool force() const { return force_; }

  std::string Help() const;
  /// The command as a subsection of a man page (roff).
  std::string ManSection() const;
  /// For shell completion: a line a flag, "--name" or "--name=a|b" or "--name=TEXT".
  std::string CompletionWords() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string shape;  // how the value looks in help: "N", "SIZE", "a|b"; empty for a switch
    std::string initial;
    std::string suggested;  // for completion: "a|b"
    std::function<absl::Status(absl::string_view)> set;
    const std::string* output = nullptr;  // the path that it writes
    bool given = false;
    bool required = false;
  };
  struct Positional {
    std::string name;
    std::string help;
    std::string* value;
    bool required;
  };

  void Add(std::string name, std::string shape, std::string initial, std::string help,
           std::function<absl::Status(absl::string_view)> set);
  Flag* Find(absl::string_view name);
  absl::Status SetFlag(absl::string_view arg, int argc, const char* const* argv, int* i);
  absl::Status CheckComplete(size_t positionals_given) const;
  absl::Status UnknownFlag(absl::string_view name) const;

  std::string command_;
  std::string summary_;
  std::vector<Flag> flags_;
  std::vector<Positional> positionals_;
  bool help_requested_ = false;
  std::string help_form_;  // of --help=FORM
  bool force_ = false;
  const std::string* json_ = nullptr;
};

/// "; did you mean X?" where one of `legal` is nearly `word`, else "".
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& legal);

/// Bytes from "4096", "512MiB", "8GiB", "1.5G" (K, M, G and T are powers of 1024, as in other
/// tools) or decimal "8GB". Letters may be small. Never negative.
absl::StatusOr<int64_t> ParseSize(absl::string_view text);

/// Prints "command: message" to stderr and returns the exit status for it: kExitUsage for
/// InvalidArgument, NotFound and other errors of the input, kExitFailure for the rest.
int ReportError(absl::string_view command, const absl::Status& status);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_ARGS_H_
