// Attention with one key head, whose keys are also the values: one softmax over a window of
// positions and over entries that stand for earlier positions (DeepSeek-V4).
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_ATTEND_ENTRIES_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_ATTEND_ENTRIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "host/aligned.h"
#include "host/blocks/kv_panels.h"
#include "host/sequence_state.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Not thread-safe: uses scratch.
class AttendEntries {
 public:
  struct Shape {
    int layer = 0;  // the layer whose states, CompressedStates, are read
    int heads = 0;
    int64_t dim = 0;       // a multiple of 16
    int64_t span = 0;      // positions of the window, the row's own included
    int64_t rate = 0;      // positions per entry; 0: no entries
    bool chooses = false;  // an indexer chooses entries
    float scale = 1.0f;
    std::vector<float> sinks;  // [heads]: attention sinks, scores in the softmax without a value
  };

  AttendEntries() = default;
  explicit AttendEntries(Shape shape) : shape_(std::move(shape)) {}

  /// queries, mixed: [rows, heads, dim]. Keys and entries of all rows are stored.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* queries,
               float* mixed);

 private:
  struct Job {
    const RowGroup* group;
    int64_t index;    // the row within the group
    int head, heads;  // first head, number of heads
  };
  /// Keys that a row sees: [begin, end) of the panels. Products cover [first, end).
  struct Seen {
    const KvPanels* panels = nullptr;
    int64_t first = 0, begin = 0, end = 0;  // first: a multiple of 16
    int64_t padded() const;
  };
  struct Scratch {
    AlignedVector<float> scores, part;
    std::unique_ptr<KvPanels> gathered;
  };

  Seen WindowOf(const Job& job) const;
  Seen EntriesOf(const Job& job, std::unique_ptr<KvPanels>* gathered) const;
  void Run(const Job& job, const float* queries, float* mixed, Scratch* scratch) const;
  void Softmax(int head, const Seen& window, const Seen& entries, float* scores) const;

  Shape shape_;
  std::vector<Job> jobs_;
  std::vector<Scratch> scratch_;  // by worker
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_ATTEND_ENTRIES_H_
