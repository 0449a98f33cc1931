// Runs a tool's main: any exception ends the tool with a line and an exit status.
#ifndef MOERT_EXAMPLES_CLI_COMMON_GUARDED_MAIN_H_
#define MOERT_EXAMPLES_CLI_COMMON_GUARDED_MAIN_H_

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "cli/common/args.h"

namespace moert::cli {

/// A handler for std::set_terminate: some destructors of JSON trees allocate, and running out of
/// memory there should end the tool with a message. All other causes still abort.
[[noreturn]] inline void EndOutOfMemory() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    std::fputs("out of memory\n", stderr);
    std::_Exit(kExitFailure);
  } catch (...) {
  }
  std::abort();
}

template <typename Run>
int GuardedMain(const char* tool, Run run) {
  std::set_terminate(EndOutOfMemory);
  try {
    return run();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory\n", tool);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", tool, e.what());
  }
  return kExitFailure;
}

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_GUARDED_MAIN_H_
