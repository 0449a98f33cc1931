// Counts of the calling thread's driver calls, by a counter that is preloaded into the process: see
// tests/gpu/driver_counter.cc. Nothing, where none is preloaded.
#ifndef MOERT_EXAMPLES_CLI_BENCH_CUDA_DRIVER_CALLS_H_
#define MOERT_EXAMPLES_CLI_BENCH_CUDA_DRIVER_CALLS_H_

#include <cstdint>

namespace moert::cli {

struct DriverCalls {
  bool counted = false;
  int64_t waits = 0;
  int64_t launches = 0;       // kernels and graphs
  int64_t waited_cpu_ns = 0;  // CPU time of the thread inside the waits
};

/// Counts the calls of this thread since it began.
DriverCalls CountDriverCalls();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_CUDA_DRIVER_CALLS_H_
