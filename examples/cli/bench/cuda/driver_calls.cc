#include "cli/bench/cuda/driver_calls.h"

#include <dlfcn.h>

namespace moert::cli {

DriverCalls CountDriverCalls() {
  using Counter = long long (*)(int kind);
  static const auto counter = reinterpret_cast<Counter>(dlsym(RTLD_DEFAULT, "moert_driver_calls"));
  DriverCalls calls;
  if (counter == nullptr) return calls;
  calls.counted = true;
  calls.waits = counter(0);
  calls.launches = counter(1) + counter(2);
  calls.waited_cpu_ns = counter(4);
  return calls;
}

}  // namespace moert::cli
