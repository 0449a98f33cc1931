#include "options.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "live_budget.h"

namespace moert_ggml {
namespace {

const char* Value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The bytes of a unit; 0: there is no such unit.
double UnitOf(const char* name) {
  static constexpr struct {
    const char* name;
    double bytes;
  } kUnits[] = {{"", 1},        {"B", 1},         {"K", 1 << 10},   {"M", 1 << 20},
                {"G", 1 << 30}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
                {"KB", 1e3},    {"MB", 1e6},      {"GB", 1e9}};
  for (const auto& unit : kUnits) {
    if (strcasecmp(unit.name, name) == 0) return unit.bytes;
  }
  return 0;
}

// Parses "8GiB", "512M" or "1000" as bytes, and "25%" where shares are allowed.
bool ReadBytes(const char* text, int64_t* bytes, double* share) {
  if (*text == '\0') return true;
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end == text || !(number > 0)) return false;
  if (share != nullptr && std::strcmp(end, "%") == 0) {
    *share = number / 100;
    return number <= 100;
  }
  const double unit = UnitOf(end);
  if (unit == 0 || number * unit < 1 || number * unit > 9e15) return false;
  *bytes = static_cast<int64_t>(number * unit);
  return true;
}

// If the variable is unset, *flag keeps its value.
bool ReadFlag(const char* name, bool* flag, std::string* error) {
  const std::string value = Value(name);
  if (value.empty()) return true;
  *flag = value == "1";
  if (value == "0" || value == "1") return true;
  *error = std::string(name) + " is \"" + value + "\", legal is 0 or 1";
  return false;
}

bool ReadThreads(const char* text, int* threads) {
  if (*text == '\0') return true;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*end != '\0' || number < 1 || number > 16) return false;
  *threads = static_cast<int>(number);
  return true;
}

// Reports variables of ours that nothing reads: they are mistakes.
void NameUnknown() {
  static constexpr std::string_view kKnown[] = {
      "BUDGET", "BUDGET_FILE", "CPU",    "DEVICE", "DISABLE",    "EXACT",
      "GPU",    "IO_THREADS",  "PINNED", "STATS",  "STATS_FILE", "STRATEGY"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.substr(0, 6) != "MOERT_") continue;
    const std::string name(text.substr(6, text.find('=') - 6));
    if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) continue;
    Say("MOERT_%s is no variable of this plug-in: see docs/guide/llama-cpp.md", name.c_str());
  }
}

}  // namespace

bool ReadBudget(const char* text, int64_t* bytes, double* fraction) {
  return ReadBytes(text, bytes, fraction);
}

bool ReadOptions(Options* options, std::string* error) {
  NameUnknown();
  options->budget_file = Value("MOERT_BUDGET_FILE");
  if (!options->budget_file.empty()) {
    if (!BudgetFile(options->budget_file)
             .Read(&options->budget_bytes, &options->budget_fraction, error)) {
      return false;
    }
  } else if (!ReadBudget(Value("MOERT_BUDGET"), &options->budget_bytes,
                         &options->budget_fraction)) {
    *error =
        std::string("MOERT_BUDGET is \"") + Value("MOERT_BUDGET") + "\", legal is " + kLegalBudget;
    return false;
  }
  if (!ReadBytes(Value("MOERT_PINNED"), &options->pinned_bytes, nullptr)) {
    *error = std::string("MOERT_PINNED is \"") + Value("MOERT_PINNED") +
             "\", legal is a size such as 8G (8GiB) or 512M, or a number of bytes";
    return false;
  }
  if (!ReadThreads(Value("MOERT_IO_THREADS"), &options->io_threads)) {
    *error =
        std::string("MOERT_IO_THREADS is \"") + Value("MOERT_IO_THREADS") + "\", legal is 1 to 16";
    return false;
  }
  options->device = std::string_view(Value("LLAMA_ARG_DEVICE")).find("MOERT0") != std::string::npos;
  options->strategy = Value("MOERT_STRATEGY");
  options->statistics_file = Value("MOERT_STATS_FILE");
  return ReadFlag("MOERT_STATS", &options->statistics, error) &&
         ReadFlag("MOERT_GPU", &options->gpu, error) &&
         ReadFlag("MOERT_DEVICE", &options->device, error) &&
         ReadFlag("MOERT_CPU", &options->shares, error) &&
         ReadFlag("MOERT_EXACT", &options->exact, error) &&
         ReadFlag("MOERT_DISABLE", &options->disabled, error);
}

void Say(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "moert: %s\n", line);
}

std::string BytesText(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace moert_ggml
