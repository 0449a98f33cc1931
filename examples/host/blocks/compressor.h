// Compresses several positions into one entry: a weighted mean of each channel, with weights
// projected from the positions themselves (DeepSeek-V4).
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSOR_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/aligned.h"
#include "host/blocks/linear.h"
#include "host/blocks/norm.h"
#include "host/blocks/rope.h"
#include "host/device_products.h"
#include "host/sequence_state.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Positions of entries that are not complete, before and after the current run.
class CompressorTail {
 public:
  CompressorTail() = default;
  explicit CompressorTail(int64_t floats) {
    for (auto& rows : rows_) rows.resize(floats);
  }
  /// [positions, Compressor::width()]
  const float* rows() const { return rows_[now_].data(); }
  float* next() { return rows_[1 - now_].data(); }
  void Commit() { now_ = 1 - now_; }
  bool empty() const { return rows_[0].empty(); }

 private:
  int now_ = 0;
  AlignedVector<float> rows_[2];
};

/// With overlap, an entry is the mean of twice as many positions: its own and, with other values
/// and weights, those of the previous entry. Not thread-safe: uses scratch.
class Compressor {
 public:
  struct Shape {
    int64_t rate = 0;  // positions per entry
    bool overlaps = false;
    int64_t dim = 0;       // channels of an entry
    int64_t rope_dim = 0;  // the last channels, rotated by the entry's first position
  };
  /// Stores an entry that a group's rows have completed.
  using Put = std::function<void(const RowGroup& group, int64_t entry, const float* values)>;
  using Tail = std::function<CompressorTail&(const RowGroup& group)>;

  Compressor() = default;
  /// Reads `name`wkv, wgate, ape and norm. `rope` is borrowed.
  static absl::StatusOr<Compressor> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                         const std::string& name, const Shape& shape,
                                         const Rope* rope);

  bool empty() const { return shape_.rate == 0; }
  int64_t rate() const { return shape_.rate; }
  CompressorTail NewTail() const;
  void UseDevice(DeviceProducts* device) { project_.UseDevice(device); }

  /// x: [rows, hidden]. Calls `put` for each entry, from several threads.
  void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x, int64_t rows,
               const Tail& tail, const Put& put);

 private:
  struct Job {
    const RowGroup* group;
    const CompressorTail* tail;
    int64_t entry;
  };
  int64_t series() const { return shape_.overlaps ? 2 * shape_.dim : shape_.dim; }
  int64_t width() const { return 2 * series(); }  // values, then weights before their softmax
  // The first position that a sequence of this length still needs.
  int64_t FirstKept(int64_t length) const;
  // A position's values and weights, from the tail or among the rows.
  const float* At(const RowGroup& group, const CompressorTail& tail, int64_t position) const;
  void Mix(const Job& job, float* entry) const;
  void Keep(const RowGroup& group, CompressorTail* tail) const;

  Shape shape_;
  const Rope* rope_ = nullptr;
  Linear project_;
  std::vector<float> bias_;  // of weights: [rate, series]
  Norm norm_;
  std::vector<Job> jobs_;
  AlignedVector<float> projected_;
  std::vector<AlignedVector<float>> entries_;  // by worker
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_COMPRESSOR_H_
