// Lets long jobs ask whether the user pressed Ctrl-C.
#ifndef MOERT_EXAMPLES_CLI_COMMON_INTERRUPT_H_
#define MOERT_EXAMPLES_CLI_COMMON_INTERRUPT_H_

namespace moert::cli {

/// While it lives, the first SIGINT or SIGTERM makes Interrupted() true instead of ending the
/// process; the second ends it at once. One at a time.
class CatchInterrupts {
 public:
  CatchInterrupts();
  ~CatchInterrupts();
  CatchInterrupts(const CatchInterrupts&) = delete;
  CatchInterrupts& operator=(const CatchInterrupts&) = delete;
};

bool Interrupted();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_COMMON_INTERRUPT_H_
