// The user's settings, in environment variables as usual for ggml backends.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_OPTIONS_H_
#define MOERT_EXAMPLES_GGML_BACKEND_OPTIONS_H_

#include <cstdint>
#include <string>

namespace moert_ggml {

struct Options {
  /// MOERT_BUDGET: "8GiB" or "8G", "8GB" (decimal), bytes, or "25%" of the experts' bytes. If
  /// neither is set: the free memory less a reserve.
  int64_t budget_bytes = 0;
  double budget_fraction = 0;
  /// MOERT_BUDGET_FILE: holds a budget in place of MOERT_BUDGET, and is read again when it changes.
  std::string budget_file;
  /// MOERT_PINNED: RAM that experts may take beside a GPU, bytes as above; 0: for all of them.
  int64_t pinned_bytes = 0;
  int io_threads = 8;           // MOERT_IO_THREADS: experts that are read at once, 1 to 16
  std::string strategy;         // MOERT_STRATEGY: a spec of libmoert; empty: its default
  bool statistics = false;      // MOERT_STATS=1: one line a model when it is unloaded
  std::string statistics_file;  // MOERT_STATS_FILE: rewritten every second
  bool gpu = true;              // MOERT_GPU=0: the CPU multiplies, also beside a GPU
  bool device = false;    // MOERT_DEVICE=1, or LLAMA_ARG_DEVICE names it: offers the device MOERT0
  bool shares = true;     // MOERT_CPU=0: beside a GPU the CPU computes nothing of what is missing
  bool exact = false;     // MOERT_EXACT=1: nor then, and results keep their bits
  bool disabled = false;  // MOERT_DISABLE=1

  bool names_budget() const { return budget_bytes > 0 || budget_fraction > 0; }
  /// Whether experts stay in libmoert even if all of them fit.
  bool keeps_all() const { return !strategy.empty() || !budget_file.empty(); }
};

/// False: a value is not legal; `error` names the variable, its value and the legal ones.
bool ReadOptions(Options* options, std::string* error);

inline constexpr char kLegalBudget[] =
    "a size such as 8G (8GiB) or 512M, a number of bytes, or a share of the experts such as 25%";
/// False: `text` is no budget.
bool ReadBudget(const char* text, int64_t* bytes, double* fraction);

/// One line to stderr, with the plug-in's name in front.
void Say(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// "1.5 GiB".
std::string BytesText(int64_t bytes);

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_OPTIONS_H_
