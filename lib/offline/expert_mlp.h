// One expert in plain fp32, for work on many of its tokens at once.
#ifndef MOERT_LIB_OFFLINE_EXPERT_MLP_H_
#define MOERT_LIB_OFFLINE_EXPERT_MLP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/checkpoint_experts.h"
#include "moert/model.h"
#include "moert/offline/calibration_model.h"
#include "moert/scheme.h"
#include "moert/thread_pool.h"

namespace moert::offline {

using Floats = std::vector<float>;

/// Row-major fp32 matrices: gate and up [intermediate, hidden], down [hidden, intermediate].
struct ExpertMatrices {
  std::vector<float> gate, up, down;
};

/// The product function and its threads. Both borrowed.
struct Compute {
  ThreadPool* pool = nullptr;
  MatrixProducts* products = nullptr;
};

/// InvalidArgument, naming the matrix, if a weight is not finite.
absl::Status WidenExpert(const ExpertWeights& weights, ExpertMatrices* out);
/// The weights that a record encodes, in the domain in which they are stored
/// (docs/reference/layout.md: Hadamard).
absl::Status UnpackExpert(const RecordLayout& layout, const std::byte* record, ExpertMatrices* out);

/// f(x), and h of one channel's gate and up products (moert/model.h).
float Activate(Activation activation, float x);
float Activate(const ExpertActivation& activation, float gate, float up);

/// y = x w^T; w: [out, in], x: [rows, in]. A pool of a single thread works inside a job of another.
void MatMul(const Compute& compute, absl::Span<const float> w, int64_t out, int64_t in,
            const float* x, int64_t rows, float* y);

/// h = act(x gate^T) * (x up^T), [rows, intermediate].
Floats GluForward(const Compute& compute, const MoeLayerSpec& layer, const std::vector<float>& gate,
                  const std::vector<float>& up, const float* x, int64_t rows);

/// Rows of a [*, columns] matrix, one behind the other.
Floats GatherRows(const float* from, int64_t columns, absl::Span<const int32_t> rows);

/// Whether a scheme rounds activations.
inline bool RoundsActivations(const Scheme& scheme) { return scheme.act_bits != 16 || scheme.fp8; }

/// Rounds rows of k values in place: a scale per 128 channels for schemes in groups, per row for
/// those per channel, e4m3 for fp8 (moert/mixed_group_gemm.h). Schemes with 16-bit activations
/// leave them as they are.
void RoundActivations(const Scheme& scheme, int64_t k, Floats* x);

}  // namespace moert::offline

#endif  // MOERT_LIB_OFFLINE_EXPERT_MLP_H_
