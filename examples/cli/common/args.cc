#include "cli/common/args.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/common/output.h"

namespace moert::cli {
namespace {

std::string Str(absl::string_view s) { return std::string(s); }

template <typename T>
absl::StatusOr<T> ParseInteger(absl::string_view text, T min, T max) {
  T value;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not an integer", Str(text)));
  }
  if (value < min || value > max) {
    return absl::InvalidArgumentError(
        fmt::format("{} is out of range, legal: {} to {}", value, min, max));
  }
  return value;
}

// Edit distance: letters inserted, deleted, replaced, or swapped with their neighbour.
size_t Changes(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(last, now);
  }
  return last[b.size()];
}

}  // namespace

void ArgParser::Add(std::string name, std::string shape, std::string initial, std::string help,
                    std::function<absl::Status(absl::string_view)> set) {
  Flag flag;
  flag.name = std::move(name);
  flag.shape = std::move(shape);
  flag.initial = std::move(initial);
  flag.help = std::move(help);
  flag.set = std::move(set);
  flags_.push_back(std::move(flag));
}

void ArgParser::AddString(std::string name, std::string* value, std::string help) {
  Add(std::move(name), "TEXT", *value, std::move(help), [value](absl::string_view text) {
    *value = Str(text);
    return absl::OkStatus();
  });
}

void ArgParser::AddInt(std::string name, int* value, std::string help, int min, int max) {
  Add(std::move(name), "N", fmt::format("{}", *value), std::move(help),
      [value, min, max](absl::string_view text) {
        const auto parsed = ParseInteger<int>(text, min, max);
        if (parsed.ok()) *value = *parsed;
        return parsed.status();
      });
}

void ArgParser::AddInt64(std::string name, int64_t* value, std::string help, int64_t min,
                         int64_t max) {
  Add(std::move(name), "N", fmt::format("{}", *value), std::move(help),
      [value, min, max](absl::string_view text) {
        const auto parsed = ParseInteger<int64_t>(text, min, max);
        if (parsed.ok()) *value = *parsed;
        return parsed.status();
      });
}

void ArgParser::AddDouble(std::string name, double* value, std::string help) {
  Add(std::move(name), "X", fmt::format("{}", *value), std::move(help),
      [value](absl::string_view text) {
        double parsed;
        if (!absl::SimpleAtod(text, &parsed) || !std::isfinite(parsed)) {
          return absl::InvalidArgumentError(fmt::format("'{}' is not a number", Str(text)));
        }
        *value = parsed;
        return absl::OkStatus();
      });
}

void ArgParser::AddIntList(std::string name, std::vector<int>* value, std::string help, int min) {
  Add(std::move(name), "N,N,...", fmt::format("{}", fmt::join(*value, ",")), std::move(help),
      [value, min](absl::string_view text) {
        std::vector<int> parsed;
        for (absl::string_view part : absl::StrSplit(text, ',')) {
          const auto item = ParseInteger<int>(part, min, INT32_MAX);
          if (!item.ok()) return item.status();
          parsed.push_back(*item);
        }
        *value = std::move(parsed);
        return absl::OkStatus();
      });
}

void ArgParser::AddSize(std::string name, int64_t* bytes, std::string help) {
  Add(std::move(name), "SIZE", *bytes > 0 ? fmt::format("{} bytes", *bytes) : "", std::move(help),
      [bytes](absl::string_view text) {
        const auto parsed = ParseSize(text);
        if (parsed.ok()) *bytes = *parsed;
        return parsed.status();
      });
}

void ArgParser::AddChoice(std::string name, std::string* value, std::vector<std::string> choices,
                          std::string help) {
  std::string shape = absl::StrJoin(choices, "|");
  Add(std::move(name), std::move(shape), *value, std::move(help),
      [value, choices = std::move(choices)](absl::string_view text) {
        for (const std::string& choice : choices) {
          if (choice == text) {
            *value = choice;
            return absl::OkStatus();
          }
        }
        return absl::InvalidArgumentError(fmt::format("'{}' is unknown{}, legal values: {}",
                                                      Str(text), DidYouMean(text, choices),
                                                      absl::StrJoin(choices, ", ")));
      });
}

void ArgParser::AddSwitch(std::string name, bool* value, std::string help) {
  Add(std::move(name), "", "", std::move(help), [value](absl::string_view) {
    *value = true;
    return absl::OkStatus();
  });
}

void ArgParser::AddOutput(std::string name, std::string* path, std::string help) {
  AddString(std::move(name), path, std::move(help));
  flags_.back().shape = "FILE";
  flags_.back().output = path;
  if (Find("force") == nullptr) AddSwitch("force", &force_, "overwrites what is there");
}

void ArgParser::AddJson(std::string* path) {
  AddOutput("json", path, "writes the figures to a file, or, alone, to stdout: -");
  json_ = path;
}

void ArgParser::AddQuiet(bool* quiet, std::string what) {
  AddSwitch("quiet", quiet, "no " + std::move(what));
}

void ArgParser::Suggest(absl::string_view name, const std::vector<std::string>& values) {
  if (Flag* flag = Find(name)) flag->suggested = absl::StrJoin(values, "|");
}

void ArgParser::AddPositional(std::string name, std::string* value, std::string help,
                              bool required) {
  positionals_.push_back({std::move(name), std::move(help), value, required});
}

void ArgParser::Require(absl::string_view name) {
  if (Flag* flag = Find(name)) flag->required = true;
}

bool ArgParser::Given(absl::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return flag.given;
  }
  return false;
}

ArgParser::Flag* ArgParser::Find(absl::string_view name) {
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status ArgParser::UnknownFlag(absl::string_view name) const {
  std::vector<std::string> legal;
  for (const Flag& flag : flags_) legal.push_back("--" + flag.name);
  legal.push_back("--help");
  return absl::InvalidArgumentError(fmt::format("unknown flag --{}{}, legal flags: {}", Str(name),
                                                DidYouMean("--" + Str(name), legal),
                                                absl::StrJoin(legal, ", ")));
}

// The flag at argv[*i], of which `arg` is what follows "--"; takes its value from the next argument
// where it has one there.
absl::Status ArgParser::SetFlag(absl::string_view arg, int argc, const char* const* argv, int* i) {
  const size_t equals = arg.find('=');
  const bool inline_value = equals != absl::string_view::npos;
  Flag* flag = Find(arg.substr(0, equals));
  if (flag == nullptr) return UnknownFlag(arg.substr(0, equals));
  if (flag->given) {
    return absl::InvalidArgumentError(fmt::format("--{} is given twice", flag->name));
  }
  flag->given = true;
  absl::string_view value;
  if (inline_value) {
    if (flag->shape.empty()) {
      return absl::InvalidArgumentError(fmt::format("--{} takes no value", flag->name));
    }
    value = arg.substr(equals + 1);
  } else if (!flag->shape.empty()) {
    if (*i + 1 == argc) {
      return absl::InvalidArgumentError(
          fmt::format("--{} needs a value: {}", flag->name, flag->shape));
    }
    value = argv[++*i];
  }
  const absl::Status status = flag->set(value);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(fmt::format("--{}: {}", flag->name, Str(status.message())));
}

absl::Status ArgParser::CheckComplete(size_t positionals_given) const {
  for (const Flag& flag : flags_) {
    if (flag.required && !flag.given) {
      return absl::InvalidArgumentError(
          fmt::format("--{} {} is required: {}", flag.name, flag.shape, flag.help));
    }
  }
  for (size_t i = positionals_given; i < positionals_.size(); ++i) {
    if (positionals_[i].required) {
      return absl::InvalidArgumentError(
          fmt::format("{} is required: {}", positionals_[i].name, positionals_[i].help));
    }
  }
  for (const Flag& flag : flags_) {
    if (flag.output == nullptr || !flag.given) continue;
    if (!force_ && WouldOverwrite(*flag.output)) {
      return absl::AlreadyExistsError(
          fmt::format("--{}: {} already exists; --force overwrites it", flag.name, *flag.output));
    }
    // Checked now, before hours of work.
    const absl::Status place = CheckPlace(*flag.output);
    if (!place.ok()) {
      return absl::Status(place.code(), fmt::format("--{}: {}", flag.name, Str(place.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status ArgParser::Parse(int argc, const char* const* argv) {
  size_t next_positional = 0;
  bool flags_ended = false;
  for (int i = 0; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (!flags_ended && arg == "--") {
      flags_ended = true;
      continue;
    }
    if (!flags_ended && (arg == "-h" || arg == "--help" || absl::StartsWith(arg, "--help="))) {
      help_requested_ = true;
      if (absl::ConsumePrefix(&arg, "--help=")) help_form_ = Str(arg);
      return absl::OkStatus();
    }
    if (!flags_ended && absl::ConsumePrefix(&arg, "--")) {
      const absl::Status status = SetFlag(arg, argc, argv, &i);
      if (!status.ok()) return status;
      continue;
    }
    if (next_positional == positionals_.size()) {
      return absl::InvalidArgumentError(fmt::format("unexpected argument '{}'", Str(arg)));
    }
    *positionals_[next_positional++].value = Str(arg);
  }
  return CheckComplete(next_positional);
}

std::optional<int> ArgParser::ParseOrReport(int argc, const char* const* argv) {
  const absl::Status parsed = Parse(argc, argv);
  if (!parsed.ok()) return ReportError(command_, parsed);
  if (help_requested_) {
    Print("{}", help_form_ == "man"     ? ManSection()
                : help_form_ == "words" ? CompletionWords()
                                        : Help());
    return kExitOk;
  }
  if (json_ != nullptr && *json_ == "-") KeepStdoutForJson();
  return std::nullopt;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& legal) {
  size_t least = word.size() / 4 + 1;  // more changes than these make another word
  const std::string* nearest = nullptr;
  for (const std::string& candidate : legal) {
    const size_t changes = Changes(word, candidate);
    if (changes > least || (changes == least && nearest != nullptr)) continue;
    least = changes;
    nearest = &candidate;
  }
  return nearest == nullptr ? "" : fmt::format("; did you mean {}?", *nearest);
}

absl::StatusOr<int64_t> ParseSize(absl::string_view text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  absl::string_view number = upper;
  double scale = 1.0;
  const bool byte = absl::ConsumeSuffix(&number, "B");
  const bool binary = absl::ConsumeSuffix(&number, "I");
  const char unit = number.empty() ? '\0' : number.back();
  const size_t power = absl::string_view("KMGT").find(unit);
  if (power != absl::string_view::npos) {
    number.remove_suffix(1);
    scale = std::pow(byte && !binary ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  int64_t whole;
  if (!binary && scale == 1.0 && absl::SimpleAtoi(number, &whole) && whole >= 0) return whole;
  double value;
  // 2^63 is exact as a double; every smaller product fits an int64.
  if (scale == 1.0 || !absl::SimpleAtod(number, &value) || !(value >= 0) ||
      !(value * scale < 9223372036854775808.0)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a size: a number of bytes, or one with K, M, G or T (also KiB, ...: "
        "powers of 1024), or KB, MB, GB or TB (powers of 1000)",
        Str(text)));
  }
  return static_cast<int64_t>(value * scale);
}

int ReportError(absl::string_view command, const absl::Status& status) {
  constexpr size_t kMostBytes = 4000;  // arguments may be longer than anybody reads
  const absl::string_view message = status.message();
  Print(stderr, "{}: {}{}\n", Str(command), Str(message.substr(0, kMostBytes)),
        message.size() > kMostBytes ? "..." : "");
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return kExitUsage;
    default:
      return kExitFailure;
  }
}

}  // namespace moert::cli
