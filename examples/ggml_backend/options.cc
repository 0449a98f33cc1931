#include "options.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace moert_ggml {
namespace {

const char* Value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "8GiB", "512MiB", "1000": bytes; and "25%" where there may be shares.
bool ReadBytes(const char* text, int64_t* bytes, double* share) {
  if (*text == '\0') return true;
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (end == text || !(number > 0)) return false;
  if (share != nullptr && std::strcmp(end, "%") == 0) {
    *share = number / 100;
    return number <= 100;
  }
  double unit = 0;
  if (*end == '\0' || std::strcmp(end, "B") == 0) unit = 1;
  if (std::strcmp(end, "KiB") == 0) unit = 1 << 10;
  if (std::strcmp(end, "MiB") == 0) unit = 1 << 20;
  if (std::strcmp(end, "GiB") == 0) unit = 1 << 30;
  if (unit == 0 || number * unit < 1 || number * unit > 9e15) return false;
  *bytes = static_cast<int64_t>(number * unit);
  return true;
}

// Unset: *flag stays.
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

}  // namespace

bool ReadOptions(Options* options, std::string* error) {
  if (!ReadBytes(Value("MOERT_BUDGET"), &options->budget_bytes, &options->budget_fraction)) {
    *error = std::string("MOERT_BUDGET is \"") + Value("MOERT_BUDGET") +
             "\", legal is a size such as 8GiB or 512MiB, a number of bytes, or a share of the "
             "experts such as 25%";
    return false;
  }
  if (!ReadBytes(Value("MOERT_PINNED"), &options->pinned_bytes, nullptr)) {
    *error = std::string("MOERT_PINNED is \"") + Value("MOERT_PINNED") +
             "\", legal is a size such as 8GiB or 512MiB, or a number of bytes";
    return false;
  }
  if (!ReadThreads(Value("MOERT_IO_THREADS"), &options->io_threads)) {
    *error =
        std::string("MOERT_IO_THREADS is \"") + Value("MOERT_IO_THREADS") + "\", legal is 1 to 16";
    return false;
  }
  options->strategy = Value("MOERT_STRATEGY");
  return ReadFlag("MOERT_STATS", &options->statistics, error) &&
         ReadFlag("MOERT_GPU", &options->gpu, error) &&
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
