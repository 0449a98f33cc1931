#include "exec/cuda/memory/device_format.h"

#include <string>

#include "base/errors.h"
#include "base/status_macros.h"
#include "kernels/cpu/kernel_set.h"

namespace moert::cuda {
namespace {

/// The form that activations are rounded to.
OperandForm FormOf(const Scheme& s, ActivationNumerics numerics) {
  if (kernels::TakesF8Group(s, numerics)) return OperandForm::kF8Group;
  if (s.fp8 && s.act_bits == 8) return OperandForm::kF8;
  const bool grouped = s.group > 0;
  if (s.act_bits == 8) return grouped ? OperandForm::kInt8Group : OperandForm::kInt8Token;
  if (s.act_bits == 4) return grouped ? OperandForm::kInt4Group : OperandForm::kInt4Token;
  return OperandForm::kBf16;
}

absl::StatusOr<Packing> PackingOf(const Scheme& s) {
  if (s.is_bf16()) return Packing::kBf16;
  if (s.imported()) {
    if (s.fp8) return Packing::kF8Block;
    if (s.fp4) return s.scales == ScaleType::kE8M0 ? Packing::kMxFp4 : Packing::kNvFp4;
    return s.scales == ScaleType::kF16 ? Packing::kW4GroupF16 : Packing::kW4Group;
  }
  if (s.fp8) return Packing::kF8;
  if (s.act_bits == 16) {
    if (s.weight_bits == 8) return Packing::kW8;
    if (s.weight_bits == 4) return Packing::kW4;
    if (s.weight_bits == 3) return Packing::kW3;
    if (s.weight_bits == 2) return Packing::kW2;
  } else if (s.symmetric) {
    if (s.weight_bits == 8 && s.group < 0) return Packing::kW8A8;
    if (s.weight_bits == 4) return Packing::kW4A8;
  }
  return Unimplemented(
      "scheme {}: the cuda backend executes bf16; w8, w4, w3, w2 with 16-bit activations; w8a8, "
      "w8a8_fp8, and symmetric w4 with 8- or 4-bit activations; fp8_b128, mxfp4, nvfp4",
      s.Name());
}

absl::StatusOr<DeviceMatrix> MakeDeviceMatrix(const MatrixLayout& m, bool hadamard,
                                              ActivationNumerics numerics) {
  DeviceMatrix d;
  const Scheme& s = m.scheme;
  MOERT_ASSIGN_OR_RETURN(d.packing, PackingOf(s));
  d.operand = static_cast<int32_t>(FormOf(s, numerics)) + (hadamard ? kOperandForms : 0);
  d.k = static_cast<int32_t>(m.k);
  d.row_blocks = static_cast<int32_t>(m.padded_rows / kRowTile);
  d.k64s = static_cast<int32_t>(m.padded_k / 64);
  d.weight_offset = m.weight_offset;
  d.scale_offset = m.scale_offset;
  d.zero_offset = m.scale_offset;
  d.bias_offset = m.bias_offset;
  if (s.is_bf16()) return d;
  d.asymmetric = s.symmetric ? 0 : 1;
  d.zero_point = s.symmetric ? 1 << (s.weight_bits - 1) : 0;
  if (s.imported()) {
    d.group_k16s = s.group / 16;
    if (!s.symmetric) d.zero_offset = m.zero_offset();
    if (d.packing == Packing::kNvFp4) d.zero_offset = m.matrix_scale_offset();
    return d;
  }
  const bool whole = m.group >= m.k;
  if (!whole && m.group % 128 != 0 && !(m.group == 64 && d.packing == Packing::kW2)) {
    return Unimplemented(
        "scheme {}: groups of {}; the cuda backend has groups of multiples of 128, and of 64 for "
        "2-bit weights",
        s.Name(), m.group);
  }
  d.group_k16s = whole ? 4 * d.k64s : static_cast<int32_t>(m.group / 16);
  if (!s.symmetric) d.zero_offset = m.scale_offset + m.scale_bytes / 2;
  return d;
}

}  // namespace

absl::StatusOr<DeviceFormat> MakeDeviceFormat(const RecordLayout& layout,
                                              ActivationNumerics numerics) {
  const bool hadamard = layout.format.hadamard;
  DeviceFormat f;
  MOERT_ASSIGN_OR_RETURN(f.gate, MakeDeviceMatrix(layout.gate, hadamard, numerics));
  MOERT_ASSIGN_OR_RETURN(f.up, MakeDeviceMatrix(layout.up, hadamard, numerics));
  MOERT_ASSIGN_OR_RETURN(f.down, MakeDeviceMatrix(layout.down, hadamard, numerics));
  if (!(layout.gate.scheme == layout.up.scheme)) {
    return Unimplemented(
        "gate in {} and up in {}: the cuda backend takes one scheme for both; they run widened to "
        "bf16 (OpenModelOptions::widen, --as bf16), rounded anew (--as SCHEME), or as they are on "
        "the CPU (--backend cpu)",
        layout.gate.scheme.Name(), layout.up.scheme.Name());
  }
  return f;
}

absl::Status CheckDeviceFormats(const ExpertSource& source, absl::Span<const int> versions) {
  const MoeModelSpec& model = source.model();
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      for (const int version : versions) {
        const absl::Status status = MakeDeviceFormat(source.layout(l, e, version)).status();
        if (status.ok()) continue;
        return Unimplemented("layer {}, expert {}: {}", l, e, std::string(status.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OperandUse> OperandsOf(const ExpertSource& source, absl::Span<const int> versions,
                                      ActivationNumerics numerics) {
  OperandUse use;
  const MoeModelSpec& model = source.model();
  const ExpertFormat* last = nullptr;
  for (int l = 0; l < model.num_layers(); ++l) {
    if (model.layers[l].shared_intermediate > 0) {
      use.x[0] = true;
      use.prompt.Add(DeviceFormat{});  // a bf16 record
    }
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      for (const int version : versions) {
        const RecordLayout& layout = source.layout(l, e, version);
        if (last != nullptr && *last == layout.format) continue;
        last = &layout.format;
        MOERT_ASSIGN_OR_RETURN(const DeviceFormat f, MakeDeviceFormat(layout, numerics));
        use.x[f.gate.operand] = true;
        use.x[PromptOperand(f.gate.operand)] = true;
        use.wide_h |= f.down.operand != 0;
        use.prompt.Add(f);
      }
    }
  }
  return use;
}

}  // namespace moert::cuda
