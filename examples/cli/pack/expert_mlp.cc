#include "examples/cli/pack/expert_mlp.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/status_macros.h"
#include "examples/host/linear.h"
#include "examples/host/mlp.h"
#include "quant/packing.h"

namespace moert::cli {
namespace {

absl::Status Widen(const char* name, const std::vector<uint16_t>& from, std::vector<float>* to) {
  to->resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    (*to)[i] = Bf16ToF32(from[i]);
    if (!std::isfinite((*to)[i])) {
      return absl::InvalidArgumentError(fmt::format("{}: a weight is not finite", name));
    }
  }
  return absl::OkStatus();
}

// Multiply-adds from which the way to a device and back is worth it: 16 million are half a
// millisecond of a core.
constexpr int64_t kDeviceWork = int64_t{1} << 24;

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

void MatMul(const Compute& compute, absl::Span<const float> w, int64_t out, int64_t in,
            const float* x, int64_t rows, float* y) {
  if (compute.device != nullptr && rows > 0 && out * in >= kDeviceWork / rows &&
      compute.device->Multiply(w.data(), out, in, x, rows, y).ok()) {
    return;
  }
  host::Linear::FromF32(w.data(), out, in, nullptr).Forward(compute.pool, x, rows, y);
}

Floats GluForward(const Compute& compute, const MoeLayerSpec& layer, const std::vector<float>& gate,
                  const std::vector<float>& up, const float* x, int64_t rows) {
  Floats h(static_cast<size_t>(rows * layer.intermediate)), upped(h.size());
  MatMul(compute, gate, layer.intermediate, layer.hidden, x, rows, h.data());
  MatMul(compute, up, layer.intermediate, layer.hidden, x, rows, upped.data());
  for (size_t i = 0; i < h.size(); ++i) h[i] = host::Activate(layer.activation, h[i]) * upped[i];
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

}  // namespace moert::cli
