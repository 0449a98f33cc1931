#include "backend/cuda/device_format.h"

#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert::cuda {
namespace {

absl::StatusOr<DeviceMatrix> MakeDeviceMatrix(const MatrixLayout& m) {
  DeviceMatrix d;
  const Scheme& s = m.scheme;
  const bool a16 = s.act_bits == 16 && !s.fp8;
  if (s.is_bf16()) {
    d.packing = Packing::kBf16;
  } else if (a16 && s.weight_bits == 8) {
    d.packing = Packing::kW8;
  } else if (a16 && s.weight_bits == 4) {
    d.packing = Packing::kW4;
  } else if (a16 && s.weight_bits == 3) {
    d.packing = Packing::kW3;
  } else if (a16 && s.weight_bits == 2) {
    d.packing = Packing::kW2;
  } else {
    return absl::UnimplementedError(fmt::format(
        "scheme {}: the cuda backend executes bf16 and w8, w4, w3, w2 with 16-bit activations",
        s.Name()));
  }
  d.row_blocks = static_cast<int32_t>(m.padded_rows / kRowTile);
  d.k64s = static_cast<int32_t>(m.padded_k / 64);
  d.weight_offset = m.weight_offset;
  d.scale_offset = m.scale_offset;
  d.zero_offset = m.scale_offset;
  if (s.is_bf16()) return d;
  const bool whole = m.group >= m.k;
  if (!whole && m.group != 64 && m.group % 128 != 0) {
    return absl::UnimplementedError(fmt::format(
        "scheme {}: groups of {}; the cuda backend has groups of 64 and of multiples of 128",
        s.Name(), m.group));
  }
  d.group_k64s = whole ? d.k64s : static_cast<int32_t>(m.group / 64);
  d.asymmetric = s.symmetric ? 0 : 1;
  d.zero_point = s.symmetric ? 1 << (s.weight_bits - 1) : 0;
  if (!s.symmetric) d.zero_offset = m.scale_offset + m.scale_bytes / 2;
  return d;
}

}  // namespace

absl::StatusOr<DeviceFormat> MakeDeviceFormat(const RecordLayout& layout) {
  if (layout.format.hadamard) {
    return absl::UnimplementedError(
        "weights in the Hadamard domain: the cuda backend executes packs without, the cpu backend "
        "both");
  }
  DeviceFormat f;
  MOERT_ASSIGN_OR_RETURN(f.gate, MakeDeviceMatrix(layout.gate));
  MOERT_ASSIGN_OR_RETURN(f.up, MakeDeviceMatrix(layout.up));
  MOERT_ASSIGN_OR_RETURN(f.down, MakeDeviceMatrix(layout.down));
  if (!(layout.gate.scheme == layout.up.scheme)) {
    return absl::UnimplementedError(
        fmt::format("gate in {} and up in {}: the cuda backend takes one scheme for both",
                    layout.gate.scheme.Name(), layout.up.scheme.Name()));
  }
  return f;
}

}  // namespace moert::cuda
