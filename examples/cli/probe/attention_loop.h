// Emulates the time that a host spends outside libmoert, in its attention: all threads read memory
// for a given time, as a decoder's projections read their weights.
#ifndef MOERT_EXAMPLES_CLI_PROBE_ATTENTION_LOOP_H_
#define MOERT_EXAMPLES_CLI_PROBE_ATTENTION_LOOP_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "moert/thread_pool.h"
#include "util/aligned_buffer.h"

namespace moert::cli {

class AttentionLoop {
 public:
  static absl::StatusOr<std::unique_ptr<AttentionLoop>> Create(int threads);
  void Run(int64_t ns);
  /// Bytes a second that all threads read from memory: median of a few passes.
  double ReadBytesPerSecond();

 private:
  std::unique_ptr<ThreadPool> pool_;
  util::AlignedBuffer buffer_;
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PROBE_ATTENTION_LOOP_H_
