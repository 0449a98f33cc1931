// Texts made of the declarations of an ArgParser: help, man pages, completion.
#include <fmt/format.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/common/args.h"

namespace moert::cli {
namespace {

// Escapes text for roff; a line may break after any comma.
std::string Roff(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}, {", ", ", "}, {",", ",\\:"}});
}

}  // namespace

std::string ArgParser::Help() const {
  std::string out = fmt::format("{}: {}\n\nusage: {}", command_, summary_, command_);
  for (const Positional& p : positionals_) {
    out += p.required ? " " + p.name : fmt::format(" [{}]", p.name);
  }
  out += " [flags]\n";
  for (const Positional& p : positionals_) out += fmt::format("  {}\n      {}\n", p.name, p.help);
  for (const Flag& flag : flags_) {
    out += fmt::format("  --{}{}{}\n      {}", flag.name, flag.shape.empty() ? "" : " ", flag.shape,
                       flag.help);
    if (flag.required) out += " (required)";
    if (!flag.initial.empty()) out += fmt::format(" (default: {})", flag.initial);
    out += "\n";
  }
  return out;
}

std::string ArgParser::ManSection() const {
  std::string out = fmt::format(".SS {}", Roff(command_));
  for (const Positional& p : positionals_) {
    absl::StrAppend(&out, " ", p.required ? p.name : fmt::format("[{}]", p.name));
  }
  absl::StrAppend(&out, " [flags]\n", Roff(summary_), "\n");
  for (const Positional& p : positionals_) {
    absl::StrAppend(&out, ".TP\n.I ", p.name, "\n", Roff(p.help), "\n");
  }
  for (const Flag& flag : flags_) {
    absl::StrAppend(&out, ".TP\n.B ", Roff("--" + flag.name), "\\fR ", Roff(flag.shape), "\n",
                    Roff(flag.help));
    if (flag.required) absl::StrAppend(&out, " (required)");
    if (!flag.initial.empty()) absl::StrAppend(&out, " (default: ", Roff(flag.initial), ")");
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::string ArgParser::CompletionWords() const {
  std::string out;
  for (const Flag& flag : flags_) {
    absl::StrAppend(&out, "--", flag.name, flag.shape.empty() ? "" : "=",
                    flag.suggested.empty() ? flag.shape : flag.suggested, "\n");
  }
  return out + "--help\n";
}

}  // namespace moert::cli
