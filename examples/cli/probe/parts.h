// The measurements of moert-bench probe and moert-run doctor, one function each. Those with an
// `until` repeat themselves `repeats` times, or fewer: at least once, but no more once it has
// passed.
#ifndef MOERT_EXAMPLES_CLI_PROBE_PARTS_H_
#define MOERT_EXAMPLES_CLI_PROBE_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/common/report.h"
#include "cli/probe/until.h"
#include "cli/workload/shapes.h"
#include "moert/thread_pool.h"

namespace moert::cli {

/// Memory: all threads read, one thread reads, all threads copy, one copies, and as many as read
/// experts; bytes a second.
struct MemoryRates {
  Spread read, read_one_thread, copy, copy_one_thread, copy_readers;
};
absl::StatusOr<MemoryRates> ProbeMemory(int threads, int readers, int repeats, const Until& until);

/// Reads of one size from a file by some threads at once.
struct DiskRate {
  int64_t bytes = 0;
  int threads = 1;
  std::string access;  // "direct", "cold" (buffered, nothing cached), "cached"
  Spread bytes_per_s;  // of all threads together
};
/// Writes a file of `file_bytes` into `directory`, reads it in random order in each way, and
/// removes it. Sizes, threads and ways take turns within a repetition. A slow disk gets a smaller
/// file, and fewer reads each way.
absl::StatusOr<std::vector<DiskRate>> ProbeDisk(const std::string& directory, int64_t file_bytes,
                                                int repeats, const Until& until);

/// How fast threads notice: nanoseconds.
struct WakeTimes {
  Spread condition;   // a sleeping thread is notified and answers: half of the round trip
  Spread pool;        // ThreadPool::Run of one empty job a thread, the pool spinning
  Spread pool_slept;  // how much longer 300 us of work for all threads take when they sleep
  Spread sleep;       // how much longer than 100 us a sleep of 100 us takes
};
absl::StatusOr<WakeTimes> ProbeWake(ThreadPool* pool, int repeats, const Until& until);

/// Expert products: bytes of weights per second, read from memory, not from caches.
struct ComputeProbe {
  std::string kernels;
  std::string scheme;
  int64_t experts = 8;  // a call
  int64_t tokens = 1;   // of each
  int64_t call_bytes = 0;
  Spread bytes_per_s;
};
/// Every kernel set but the reference, every scheme that it has a kernel for; eight experts a call
/// by all `tokens`, and one expert a call by one token. The best set first: time that runs out
/// costs the others.
absl::StatusOr<std::vector<ComputeProbe>> ProbeCompute(ThreadPool* pool, int64_t hidden,
                                                       int64_t intermediate,
                                                       const std::vector<int>& tokens,
                                                       const std::vector<std::string>& schemes,
                                                       int repeats, const Until& until);

/// Bytes a second that all threads read of `bytes`, for about so many seconds.
absl::StatusOr<double> ReadRate(ThreadPool* pool, int64_t bytes, double seconds);

/// Bytes a second of bf16 weights [n, k] in the example host's products of one token.
absl::StatusOr<double> DenseRate(ThreadPool* pool, int64_t k, int64_t bytes, double seconds);

/// Expert products of one token, `experts` a call, by the best kernels that have the scheme.
struct ExpertRateOptions {
  int64_t hidden = 0, intermediate = 0;
  std::string scheme;
  int64_t experts = 8;
  int64_t bytes = 0;  // that all experts together may take
  double seconds = 1;
};
absl::StatusOr<double> ExpertRate(ThreadPool* pool, const ExpertRateOptions& options);

/// Times of a layer call, from an engine that holds every expert: in nanoseconds all of a one-token
/// call; its part that is not products (routing, planning, combination); the same for every token
/// more, and for the next layer's gate.
struct LayerOverhead {
  double total_ns = 0;
  double call_ns = 0;
  double token_ns = 0;
  double next_gate_ns = 0;
};
/// `attention_ns` of emulated attention come before every call, as in use.
absl::StatusOr<LayerOverhead> ProbeLayer(const Shape& shape, int threads, int64_t attention_ns,
                                         int repeats, const Until& until);

/// Most bytes this process may lock in memory (RLIMIT_MEMLOCK); negative: no limit.
int64_t PinLimit();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PROBE_PARTS_H_
