// Root-mean-square and layer normalization.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_NORM_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_NORM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

class Norm {
 public:
  Norm() = default;
  /// Reads `name`.weight [width], and `name`.bias for a layer norm.
  static absl::StatusOr<Norm> Load(const Checkpoint& checkpoint, const std::string& name,
                                   NormKind kind, int64_t width, float eps);

  /// One row of `width` channels; x may equal y.
  void Apply(const float* x, float* y) const;
  /// Dense rows.
  void Forward(ThreadPool* pool, const float* x, int64_t rows, float* y) const;

  bool empty() const { return weight_.empty(); }

 private:
  NormKind kind_ = NormKind::kRms;
  float eps_ = 0.0f;
  std::vector<float> weight_;
  std::vector<float> bias_;  // layer norm only
};

/// 1 over the root of eps plus the mean of the squares of x [width].
float InverseRoot(int64_t width, float eps, const float* x);

/// Divides x [width] by the root of eps plus the mean of its squares.
void NormalizeL2(int64_t width, float eps, float* x);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_NORM_H_
