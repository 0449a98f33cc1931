// How fast the pool's threads can read memory: the ceiling of weight streaming.
#ifndef MOERT_EXAMPLES_CLI_PROBE_READ_BANDWIDTH_H_
#define MOERT_EXAMPLES_CLI_PROBE_READ_BANDWIDTH_H_

#include <cstddef>
#include <cstdint>

#include "moert/thread_pool.h"

namespace moert::cli {

/// Reads `bytes` (a multiple of 64) once, sequentially in as many runs as the pool has threads, and
/// returns bytes per second.
double ReadBandwidth(ThreadPool* pool, const std::byte* data, int64_t bytes);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PROBE_READ_BANDWIDTH_H_
