#include "offline/expert_mlp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "quant/f8_group.h"
#include "quant/packing.h"

namespace moert::offline {
namespace {

absl::Status Widen(const char* name, const std::vector<uint16_t>& from, std::vector<float>* to) {
  to->resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    (*to)[i] = Bf16ToF32(from[i]);
    if (!std::isfinite((*to)[i])) return InvalidArgument("{}: a weight is not finite", name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WidenExpert(const ExpertWeights& weights, ExpertMatrices* out) {
  MOERT_RETURN_IF_ERROR(Widen("gate", weights.gate, &out->gate));
  MOERT_RETURN_IF_ERROR(Widen("up", weights.up, &out->up));
  return Widen("down", weights.down, &out->down);
}

absl::Status UnpackExpert(const RecordLayout& layout, const std::byte* record,
                          ExpertMatrices* out) {
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout.gate, record, &out->gate));
  MOERT_RETURN_IF_ERROR(UnpackMatrix(layout.up, record, &out->up));
  return UnpackMatrix(layout.down, record, &out->down);
}

float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f));
    case Activation::kGeluTanh: {
      const float inner = 0.79788456080286536f * (x + 0.044715f * x * x * x);
      return 0.5f * x * (1.0f + std::tanh(inner));
    }
    case Activation::kRelu2:
      return x > 0 ? x * x : 0.0f;
  }
  return 0.0f;
}

float Activate(const ExpertActivation& a, float gate, float up) {
  const auto f = [&a](float x) {
    return a.alpha == 1 ? Activate(a.function, x) : x / (1.0f + std::exp(-a.alpha * x));
  };
  if (!a.gated) return f(gate);
  if (a.limit > 0) {
    gate = std::min(gate, a.limit);
    up = std::clamp(up, -a.limit, a.limit);
  }
  return f(gate) * (up + a.up_offset);
}

void MatMul(const Compute& compute, absl::Span<const float> w, int64_t out, int64_t in,
            const float* x, int64_t rows, float* y) {
  if (rows > 0) compute.products->Multiply(compute.pool, w.data(), out, in, x, rows, y);
}

Floats GluForward(const Compute& compute, const MoeLayerSpec& layer, const std::vector<float>& gate,
                  const std::vector<float>& up, const float* x, int64_t rows) {
  Floats h(rows * layer.intermediate), upped(h.size());
  MatMul(compute, gate, layer.intermediate, layer.hidden, x, rows, h.data());
  MatMul(compute, up, layer.intermediate, layer.hidden, x, rows, upped.data());
  constexpr int64_t kRowsAJob = 64;
  compute.pool->Run(CeilDiv(rows, kRowsAJob), [&](int64_t job, int) {
    const int64_t end = std::min(rows, (job + 1) * kRowsAJob) * layer.intermediate;
    for (int64_t at = job * kRowsAJob * layer.intermediate; at < end; ++at) {
      const auto i = static_cast<size_t>(at);
      h[i] = Activate(layer.activation, h[i], upped[i]);
    }
  });
  return h;
}

Floats GatherRows(const float* from, int64_t columns, absl::Span<const int32_t> rows) {
  Floats out(rows.size() * static_cast<size_t>(columns));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(out.data() + static_cast<int64_t>(i) * columns, from + rows[i] * columns,
                static_cast<size_t>(columns) * sizeof(float));
  }
  return out;
}

namespace {

constexpr int64_t kActivationGroup = 128;
constexpr float kLargestE4m3 = 448;

}  // namespace

void RoundActivations(const Scheme& scheme, int64_t k, Floats* x) {
  if (!RoundsActivations(scheme)) return;
  const int64_t group = scheme.group > 0 && !scheme.fp8 ? std::min(kActivationGroup, k) : k;
  const float limit = scheme.fp8 ? kLargestE4m3 : scheme.act_bits == 8 ? 127 : 7;
  const int64_t rows = static_cast<int64_t>(x->size()) / k;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < k; begin += group) {
      float* const v = x->data() + row * k + begin;
      const int64_t count = std::min(group, k - begin);
      float maximum = 0;
      for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, std::fabs(v[i]));
      const float scale = maximum / limit;
      const float inverse = maximum > 1e-30f ? limit / maximum : 0;
      for (int64_t i = 0; i < count; ++i) {
        const float exact = std::clamp(v[i] * inverse, -limit, limit);
        v[i] = scale * (scheme.fp8 ? NearestF8(exact) : std::nearbyint(exact));
      }
    }
  }
}

}  // namespace moert::offline
