#include "gemm/operand_forms.h"

#include <atomic>
#include <iterator>

namespace moert::gemm {

int64_t OperandSizes::OperandBytes(int kind, int64_t channels) const {
  return (CeilDiv(CeilDiv(channels, kKTile) * Kernels(kind).bytes_per_tile, 64) | 1) * 64;
}

int64_t OperandSizes::WidestH(const Forms& forms, int64_t channels) const {
  int64_t bytes = 0;
  for (int kind = 0; kind < kOperandKinds; ++kind) {
    if (forms.h[kind]) bytes = std::max(bytes, OperandBytes(kind, channels));
  }
  return bytes;
}

int64_t OperandSizes::TransformBytes(int64_t hidden, const Forms& forms) const {
  return forms.copies_x ? threads_ * TransformStride(hidden) * static_cast<int64_t>(sizeof(float))
                        : 0;
}

int64_t OperandSizes::WidestGathered(const Forms& forms, int64_t hidden) const {
  int64_t bytes = 0;
  for (int i = 0; i < kInputForms; ++i) {
    const OperandKernels kernels = Kernels(i % kOperandKinds);
    const bool wide = std::any_of(std::begin(kernels.wide), std::end(kernels.wide),
                                  [](BlockGemmFn gemm) { return gemm != nullptr; });
    if (forms.x[i] && wide) bytes = std::max(bytes, OperandBytes(i % kOperandKinds, hidden));
  }
  return bytes;
}

int64_t OperandSizes::GatherBytes(int64_t slots, int64_t hidden, const Forms& forms) const {
  return threads_ * GatherRows(slots) * WidestGathered(forms, hidden) * (forms.apart ? 2 : 1);
}

int64_t OperandSizes::KeptBytes(int64_t slots, int64_t hidden, int64_t widest,
                                const Forms& forms) const {
  if (slots <= kMaxColumns) return 0;
  int64_t bytes = 0;
  for (int i = 0; i < kInputForms; ++i) {
    const int kind = i % kOperandKinds;
    const OperandKernels kernels = Kernels(kind);
    const int64_t most =
        *std::max_element(std::begin(kernels.kept_bytes), std::end(kernels.kept_bytes));
    if (forms.x[i]) bytes = std::max(bytes, CeilDiv(hidden, kKTile) * most);
    if (forms.h[kind]) bytes = std::max(bytes, CeilDiv(widest, kKTile) * most);
  }
  return bytes;
}

int64_t OperandSizes::Workspace(int64_t rows, int64_t slots, int64_t hidden, int64_t widest,
                                const Forms& forms) const {
  int64_t bytes = slots * WidestH(forms, widest);
  for (int i = 0; i < kInputForms; ++i) {
    if (forms.x[i]) bytes += rows * OperandBytes(i % kOperandKinds, hidden);
  }
  bytes += TransformBytes(hidden, forms) + GatherBytes(slots, hidden, forms) +
           RoomForKept(slots, hidden, widest, forms);
  if (forms.keeps_h) bytes += slots * RoundUp(widest, kKTile) * static_cast<int64_t>(sizeof(float));
  return bytes + PlanBytes(slots) +
         RoundUp(slots * static_cast<int64_t>(sizeof(std::atomic<int64_t>)), 64);
}

}  // namespace moert::gemm
