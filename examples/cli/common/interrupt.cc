#include "cli/common/interrupt.h"

#include <csignal>

namespace moert::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

void Handle(int signal) {
  interrupted = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

CatchInterrupts::CatchInterrupts() {
  interrupted = 0;
  std::signal(SIGINT, Handle);
  std::signal(SIGTERM, Handle);
}

CatchInterrupts::~CatchInterrupts() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interrupted() { return interrupted != 0; }

}  // namespace moert::cli
