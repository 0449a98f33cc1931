// One small matrix per head, all multiplied in one call.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_HEAD_LINEAR_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_HEAD_LINEAR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "host/aligned.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/quantization_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// y_h = x_h W_h^T for each head h, W_h [out, in], in fp32 arithmetic; out a multiple of 16.
/// Thread-safe after Load.
class HeadLinear {
 public:
  HeadLinear() = default;

  /// The rows of a larger matrix that belong to a head: `name`.weight is [heads * stride,
  /// width], and head h has rows h * stride + first onward, `count` of them.
  struct Part {
    int heads = 0;
    int64_t stride = 0, first = 0, count = 0, width = 0;
  };
  /// W_h = the part's rows [count, width], or with `transposed` [width, count]. bf16 weights stay
  /// bf16 in memory, and weights stored in `form` are converted to bf16.
  static absl::StatusOr<HeadLinear> Load(const Checkpoint& checkpoint,
                                         const QuantizationConfig& form, const std::string& name,
                                         const Part& part, bool transposed);

  /// x: [rows, heads, x_stride], of which the first `in` count; y: [rows, heads, y_stride], of
  /// which the first `out` are written. The bits of a row do not depend on the others.
  void Forward(ThreadPool* pool, const float* x, int64_t x_stride, int64_t rows, float* y,
               int64_t y_stride) const;

 private:
  template <typename T>
  void PackRow(int head, int64_t row, bool transposed, const T* weights, AlignedVector<T>* packed);

  int heads_ = 0;
  int64_t out_ = 0, in_ = 0;
  // The panels [out / 16][in][16] of all heads, one head after another; one vector is empty.
  AlignedVector<float> f32_;
  AlignedVector<uint16_t> bf16_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_HEAD_LINEAR_H_
