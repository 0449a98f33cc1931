#include "moert/scheme.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/printable.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr Scheme Quantized(int weight_bits, int act_bits, int group, bool symmetric,
                           bool fp8 = false) {
  return Scheme{weight_bits, act_bits, group, symmetric, fp8};
}

// 4 bits in the forms of GPTQ, AWQ and compressed-tensors.
constexpr Scheme Int4(int group, bool zero_points, ScaleType scales) {
  Scheme s = Quantized(4, 16, group, !zero_points);
  s.zero_points = zero_points;
  s.scales = scales;
  return s;
}
constexpr Scheme Fp4(int group, ScaleType scales) {
  Scheme s = Quantized(4, 16, group, true);
  s.fp4 = true;
  s.scales = scales;
  return s;
}
constexpr Scheme Fp8Blocks() {
  Scheme s = Quantized(8, 16, 128, true, true);
  s.scales = ScaleType::kF32;
  return s;
}
constexpr auto kBF16 = ScaleType::kBF16, kF16 = ScaleType::kF16;

absl::Status TooLarge(int64_t rows, int64_t k) {
  return InvalidArgument("a weight matrix of {} x {} is too large: its size overflows", rows, k);
}

// Appends the sections of one matrix at *end and moves *end past them.
absl::StatusOr<MatrixLayout> PlaceMatrix(int64_t rows, int64_t k, const Scheme& scheme,
                                         int64_t* end) {
  MatrixLayout m;
  m.scheme = scheme;
  m.rows = rows;
  m.k = k;
  const auto padded_rows = CheckedRoundUp<int64_t>(rows, kRowTile);
  const auto padded_k = CheckedRoundUp<int64_t>(k, kKTile);
  if (!padded_rows || !padded_k) return TooLarge(rows, k);
  m.padded_rows = *padded_rows;
  m.padded_k = *padded_k;
  m.group = scheme.group > 0 && !scheme.is_bf16() ? std::min<int64_t>(scheme.group, k) : k;

  // A tile holds 16 * 64 weights, so the number of bits divides by 8 for every width.
  const auto weights = CheckedMul<int64_t>(m.padded_rows, m.padded_k);
  const auto bits = weights ? CheckedMul<int64_t>(*weights, scheme.weight_bits) : std::nullopt;
  if (!bits) return TooLarge(rows, k);
  m.weight_offset = *end;
  m.weight_bytes = *bits / 8;

  if (!scheme.is_bf16()) {
    const int64_t groups = CeilDiv<int64_t>(k, m.group);
    const int64_t scale = ScaleBytes(scheme.scales);
    const int64_t zero = scheme.symmetric ? 0 : scheme.zero_points ? 1 : scale;
    const auto scale_bytes = Checked<int64_t>(groups)
                                 .Mul(m.padded_rows)
                                 .Mul(scale + zero)
                                 .Add(scheme.scales == ScaleType::kE4M3 ? 4 : 0)
                                 .value();
    if (!scale_bytes) return TooLarge(rows, k);
    m.scale_bytes = *scale_bytes;
  }
  const auto scale_offset =
      Checked<int64_t>(m.weight_offset).Add(m.weight_bytes).RoundUp(kSectionAlignment).value();
  const auto next =
      scale_offset
          ? Checked<int64_t>(*scale_offset).Add(m.scale_bytes).RoundUp(kSectionAlignment).value()
          : std::nullopt;
  if (!next) return TooLarge(rows, k);
  m.scale_offset = *scale_offset;
  *end = *next;
  return m;
}

}  // namespace

const std::vector<Scheme>& Scheme::All() {
  static const auto* const all = new std::vector<Scheme>{
      Quantized(16, 16, -1, true),      // bf16
      Fp8Blocks(),                      // fp8_b128
      Quantized(8, 16, 128, true),      // w8a16_g128
      Quantized(8, 16, -1, true),       // w8a16_g-1
      Quantized(8, 8, -1, true),        // w8a8
      Quantized(8, 8, -1, true, true),  // w8a8_fp8
      Int4(32, true, kF16),             // w4a16_g32_zp_f16
      Int4(32, true, kBF16),            // w4a16_g32_zp
      Fp4(16, ScaleType::kE4M3),        // nvfp4
      Int4(32, false, kF16),            // w4a16_g32_f16
      Int4(32, false, kBF16),           // w4a16_g32
      Int4(64, true, kF16),             // w4a16_g64_zp_f16
      Int4(64, true, kBF16),            // w4a16_g64_zp
      Int4(64, false, kF16),            // w4a16_g64_f16
      Int4(64, false, kBF16),           // w4a16_g64
      Fp4(32, ScaleType::kE8M0),        // mxfp4
      Quantized(4, 16, 128, false),     // w4a16_g128_asym
      Int4(128, true, kF16),            // w4a16_g128_zp_f16
      Int4(128, true, kBF16),           // w4a16_g128_zp
      Int4(128, false, kF16),           // w4a16_g128_f16
      Quantized(4, 16, 128, true),      // w4a16_g128
      Quantized(4, 8, 128, true),       // w4a8_g128
      Quantized(4, 4, 128, true),       // w4a4_g128
      Quantized(4, 16, -1, false),      // w4a16_g-1_asym
      Quantized(4, 4, -1, true),        // w4a4
      Quantized(3, 16, 128, false),     // w3a16_g128_asym
      Quantized(3, 16, -1, false),      // w3a16_g-1_asym
      Quantized(2, 16, 64, false),      // w2a16_g64_asym
      Quantized(2, 16, 128, false),     // w2a16_g128_asym
      Quantized(2, 16, -1, false),      // w2a16_g-1_asym
  };
  return *all;
}

std::string Scheme::Name() const {
  if (is_bf16()) return "bf16";
  if (fp4) return scales == ScaleType::kE8M0 ? "mxfp4" : "nvfp4";
  if (fp8 && act_bits == 16) return fmt::format("fp8_b{}", group);
  std::string name = fmt::format("w{}a{}", weight_bits, act_bits);
  // Per-channel is the usual form of integer activations and is not named there.
  if (group > 0 || act_bits == 16) name += fmt::format("_g{}", group);
  if (!symmetric) name += zero_points ? "_zp" : "_asym";
  if (fp8) name += "_fp8";
  if (scales == ScaleType::kF16) name += "_f16";
  return name;
}

absl::StatusOr<Scheme> Scheme::Parse(absl::string_view name) try {
  std::string legal;
  for (const Scheme& s : All()) {
    const std::string candidate = s.Name();
    if (candidate == name) return s;
    if (!legal.empty()) legal += ", ";
    legal += candidate;
  }
  return InvalidArgument("unknown scheme \"{}\", legal are: {}", Printable(name), legal);
} catch (...) {
  return ExceptionStatus(name);
}

int64_t ScaleBytes(ScaleType type) {
  switch (type) {
    case ScaleType::kBF16:
    case ScaleType::kF16:
      return 2;
    case ScaleType::kF32:
      return 4;
    case ScaleType::kE8M0:
    case ScaleType::kE4M3:
      return 1;
  }
  return 0;
}

int64_t MatrixLayout::zero_offset() const {
  return scale_offset + groups() * padded_rows * ScaleBytes(scheme.scales);
}

int64_t MatrixLayout::matrix_scale_offset() const { return scale_offset + scale_bytes - 4; }

double RecordLayout::stored_bits() const {
  const double gate_rows = contents.gate ? static_cast<double>(gate.rows) : 0.0;
  const double weights = gate_rows * static_cast<double>(gate.k) +
                         static_cast<double>(up.rows) * static_cast<double>(up.k) +
                         static_cast<double>(down.rows) * static_cast<double>(down.k);
  return weights > 0 ? 8.0 * static_cast<double>(bytes) / weights : 0.0;
}

absl::StatusOr<RecordLayout> MakeRecordLayout(int64_t hidden, int64_t intermediate,
                                              const ExpertFormat& format,
                                              const RecordContents& contents) {
  if (hidden <= 0 || intermediate <= 0) {
    return InvalidArgument("expert dimensions must be positive: hidden is {}, intermediate is {}",
                           hidden, intermediate);
  }
  RecordLayout layout;
  layout.format = format;
  layout.contents = contents;
  if (!contents.gate) layout.format.gate = format.up;
  int64_t end = 0;
  if (contents.gate) {
    MOERT_ASSIGN_OR_RETURN(layout.gate, PlaceMatrix(intermediate, hidden, format.gate, &end));
  }
  MOERT_ASSIGN_OR_RETURN(layout.up, PlaceMatrix(intermediate, hidden, format.up, &end));
  MOERT_ASSIGN_OR_RETURN(layout.down, PlaceMatrix(hidden, intermediate, format.down, &end));
  if (contents.biases) {
    for (MatrixLayout* const m : {&layout.gate, &layout.up, &layout.down}) {
      if (m == &layout.gate && !contents.gate) continue;
      m->bias_offset = end;
      const auto next =
          Checked<int64_t>(m->padded_rows).Mul(4).Add(end).RoundUp(kSectionAlignment).value();
      if (!next) return TooLarge(hidden, intermediate);
      end = *next;
    }
  }
  if (!contents.gate) layout.gate = layout.up;
  // Callers round this up to kRecordAlignment, which must not wrap either.
  if (!CheckedRoundUp<int64_t>(end, kRecordAlignment)) return TooLarge(hidden, intermediate);
  layout.bytes = end;
  return layout;
}

}  // namespace moert
