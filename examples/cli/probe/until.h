// The time at which a measurement is to end, complete or not.
#ifndef MOERT_EXAMPLES_CLI_PROBE_UNTIL_H_
#define MOERT_EXAMPLES_CLI_PROBE_UNTIL_H_

#include <chrono>

#include "cli/common/interrupt.h"

namespace moert::cli {

class Until {
 public:
  /// In so many seconds, or when the user interrupts.
  explicit Until(double seconds)
      : end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(seconds))) {}

  bool passed() const { return std::chrono::steady_clock::now() >= end_ || Interrupted(); }

 private:
  std::chrono::steady_clock::time_point end_;
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PROBE_UNTIL_H_
