#include "cli/common/tool.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "cli/common/args.h"
#include "cli/common/guarded_main.h"
#include "cli/common/output.h"

namespace moert::cli {
namespace {

bool IsSingle(const Tool& tool) { return tool.commands.size() == 1 && *tool.commands[0].name == 0; }

void PrintUsage(const Tool& tool, std::FILE* file) {
  Print(file, "{}: {}\n\nusage: {} COMMAND [flags], {} help COMMAND\n", tool.name, tool.summary,
        tool.name, tool.name);
  for (const Command& c : tool.commands) Print(file, "  {:<10} {}\n", c.name, c.summary);
  Print(file, "  {:<10} {}\n  {:<10} {}\n  {:<10} {}\n", "--version", "the version", "--help=man",
        "the man page", "--help=bash", "completion, to be sourced by bash");
}

// A phrase of a help text as roff takes it.
std::string RoffPhrase(const char* text) { return absl::StrReplaceAll(text, {{"-", "\\-"}}); }

int PrintMan(const Tool& tool) {
  Print(".TH {} 1 \"\" \"libmoert {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
        tool.name, MOERT_VERSION, RoffPhrase(tool.name), RoffPhrase(tool.summary));
  for (const Command& c : tool.commands) {
    Print(".B {} {}\n[flags]\n.br\n", RoffPhrase(tool.name), c.name);
  }
  Print(".SH COMMANDS\n");
  std::fflush(stdout);
  const char* const form[] = {"--help=man"};
  for (const Command& c : tool.commands) c.run(1, form);
  Print(
      ".SH EXIT STATUS\n0: success. 1: a failure at run time. 2: bad arguments or input.\n"
      ".SH FILES\n$XDG_CACHE_HOME/moert or ~/.cache/moert: packs made of checkpoints.\n");
  return kExitOk;
}

// Completes flags of the typed command, values of flags with a fixed list, and else files.
int PrintBashCompletion(const Tool& tool) {
  const std::string function = absl::StrReplaceAll(tool.name, {{"-", "_"}});
  const std::string names =
      absl::StrJoin(tool.commands, " ", [](std::string* out, const Command& c) { *out += c.name; });
  Print(
      "_{0}() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command={1} flags\n"
      "  case $command in\n",
      function, IsSingle(tool) ? "only" : "${COMP_WORDS[1]}");
  const char* const form[] = {"--help=words"};
  for (const Command& c : tool.commands) {
    Print("  {}) flags='", *c.name == 0 ? "only" : c.name);
    std::fflush(stdout);
    c.run(1, form);
    Print("';;\n");
  }
  Print(
      "  esac\n"
      "  if [[ $COMP_CWORD == 1 && '{1}' ]]; then\n"
      "    COMPREPLY=($(compgen -W '{1} --help --version' -- \"$word\")); return\n"
      "  fi\n"
      "  local line\n"
      "  for line in $flags; do\n"
      "    if [[ $before == \"${{line%%=*}}\" && $line == *=* ]]; then\n"
      "      [[ $line == *\\|* ]] && COMPREPLY=($(compgen -W \"$(tr '|' ' ' <<<\"${{line#*=}}\")\" "
      "-- "
      "\"$word\")) || COMPREPLY=($(compgen -f -- \"$word\"))\n"
      "      return\n"
      "    fi\n"
      "  done\n"
      "  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"$(sed 's/=.*//' <<<\"$flags\")\" -- "
      "\"$word\"))\n"
      "  else COMPREPLY=($(compgen -f -- \"$word\")); fi\n"
      "}}\n"
      "complete -o filenames -F _{0} {2}\n",
      function, names, tool.name);
  return kExitOk;
}

int Dispatch(const Tool& tool, int argc, const char* const* argv) {
  const absl::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--version") {
    Print("{} {}\n", tool.name, MOERT_VERSION);
    return kExitOk;
  }
  if (first == "--help=man") return PrintMan(tool);
  if (first == "--help=bash") return PrintBashCompletion(tool);
  if (IsSingle(tool)) {
    const char* const help[] = {"--help"};
    return first == "help" ? tool.commands[0].run(1, help)
                           : tool.commands[0].run(argc - 1, argv + 1);
  }
  if (first == "help" && argc == 3) {
    const char* const help[] = {argv[0], argv[2], "--help"};
    return Dispatch(tool, 3, help);
  }
  if (first == "--help" || first == "-h" || first == "help") {
    PrintUsage(tool, stdout);
    return kExitOk;
  }
  for (const Command& c : tool.commands) {
    if (first == c.name) return c.run(argc - 2, argv + 2);
  }
  if (argc > 1) {
    std::vector<std::string> names;
    for (const Command& c : tool.commands) names.emplace_back(c.name);
    Print(stderr, "{}: '{}' is not a command{}; legal are {}\n", tool.name, argv[1],
          DidYouMean(argv[1], names), absl::StrJoin(names, ", "));
    return kExitUsage;
  }
  PrintUsage(tool, stderr);
  return kExitUsage;
}

}  // namespace

int RunTool(const Tool& tool, int argc, const char* const* argv) {
  KeepStandardStreams();
  const int status = GuardedMain(tool.name, [&] { return Dispatch(tool, argc, argv); });
  const absl::Status flushed = FlushStdout();
  if (!flushed.ok() && status == kExitOk) return ReportError(tool.name, flushed);
  return status;
}

}  // namespace moert::cli
