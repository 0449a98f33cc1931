// Schemes: the precision in which a linear block is stored and multiplied; an expert's layout.
//
// A scheme is named `w<bits>a<bits>[_g<group>][_asym]` after MxMoE (Sec. 4 of the paper). The name
// gives weight bits, activation bits, group size along the input dimension (-1: one per output
// channel), and whether groups carry a zero point. `bf16` is the unquantized scheme. Schemes of
// published files are kept as they are: `_zp` has integer zero points, `_f16` fp16 scales, and
// mxfp4, nvfp4 and fp8_b128 go by their own names. Stored bits and sizes follow from Scheme.
#ifndef MOERT_SCHEME_H_
#define MOERT_SCHEME_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace moert {

/// In which type the scales of groups are stored.
enum class ScaleType : int32_t {
  kBF16 = 0,
  kF16 = 1,
  kF32 = 2,
  kE8M0 = 3,  // a byte e: 2^(e - 127) (OCP MX)
  kE4M3 = 4,  // a byte, times one fp32 scale of the whole matrix (NVFP4)
};

struct Scheme {
  int weight_bits = 16;
  int act_bits = 16;
  int group = -1;  // -1: per output channel; ignored for bf16
  bool symmetric = true;
  bool fp8 = false;          // codes are e4m3: w8a8_fp8, fp8_b128
  bool fp4 = false;          // codes are e2m1: mxfp4, nvfp4
  bool zero_points = false;  // asymmetric: zeros are stored, not scale * zero
  ScaleType scales = ScaleType::kBF16;

  bool is_bf16() const { return weight_bits == 16; }
  /// Whether only published files use it; multiplied with the same activations as bf16 weights.
  bool imported() const {
    return fp4 || zero_points || scales != ScaleType::kBF16 ||
           (weight_bits == 4 && group > 0 && group < 128);
  }
  std::string Name() const;
  static absl::StatusOr<Scheme> Parse(absl::string_view name);  // the error lists the legal names
  static const std::vector<Scheme>& All();                      // of this build, most bits first

  friend bool operator==(const Scheme&, const Scheme&) = default;
};

/// The schemes of one expert's three linear blocks. Gate and up share one in every shipped kernel.
struct ExpertFormat {
  Scheme gate = {};
  Scheme up = {};
  Scheme down = {};
  /// Weights are stored in the block Hadamard domain (docs/reference/layout.md): the inputs of gate
  /// and up, and those of down, are transformed before they are rounded or quantized.
  bool hadamard = false;

  static ExpertFormat Uniform(const Scheme& s, bool hadamard = false) {
    return {s, s, s, hadamard};
  }
  bool uniform() const { return gate == up && gate == down; }
  friend bool operator==(const ExpertFormat&, const ExpertFormat&) = default;
};

/// How activations enter the product of bf16 weights and of the a16 schemes. The a8 and a4 schemes
/// have their own format, by contract per executor. It is int8 (int4) with a scale per 128 channels
/// for grouped schemes, per row for per-channel ones; w8a8_fp8 takes e4m3 with a scale per row.
enum class ActivationNumerics : int32_t {
  kBF16 = 0,  // x and h rounded to bf16, fp32 accumulation
  kF32 = 1,   // not rounded: for parity with fp32 references
  kInt8 = 2,  // CPU only: a16 schemes are multiplied as w4a8_g128 is, with int8 per 128 channels;
              // bf16 weights and imported schemes (Scheme::imported) as under kBF16
  kFp8 = 3,   // fp8_b128 is multiplied in 8 bits: x and h in e4m3, with a power of two for every
              // 128 channels (DeepSeek's recipe); other schemes as under kBF16
};

// Weights are the A operand of a matrix product: rows are output channels, K is the input
// dimension. Both are padded to these tiles with zeros, in any scheme (docs/reference/layout.md).
inline constexpr int64_t kRowTile = 16;
inline constexpr int64_t kKTile = 64;
inline constexpr int64_t kSectionAlignment = 256;  // of a record's sections
inline constexpr int64_t kRecordAlignment = 4096;  // in files and pools: one direct-I/O read each

/// One packed matrix inside a record: `rows` x `k` logical, padded to tiles.
struct MatrixLayout {
  Scheme scheme = {};
  int64_t rows = 0;
  int64_t k = 0;
  int64_t padded_rows = 0;
  int64_t padded_k = 0;
  int64_t group = 0;          // effective group size: min(scheme.group, k); k when per channel
  int64_t weight_offset = 0;  // bytes from the start of the record
  int64_t weight_bytes = 0;
  /// [groups][padded_rows] scales, then (asym) as many values scale * zero (zero_points: zeros, a
  /// byte each), then (kE4M3) one fp32 scale of the matrix.
  int64_t scale_offset = 0;
  int64_t scale_bytes = 0;  // 0 for bf16
  int64_t bias_offset = 0;  // [padded_rows] fp32, added to the product; 0: none

  int64_t groups() const { return scale_bytes > 0 ? (k + group - 1) / group : 0; }
  int64_t zero_offset() const;          // behind the scales
  int64_t matrix_scale_offset() const;  // kE4M3
};

/// One part of an opaque record.
struct RecordPart {
  int64_t offset = 0;  // bytes from the start of the record
  int64_t bytes = 0;
  friend bool operator==(const RecordPart&, const RecordPart&) = default;
};

/// The optional parts of a record.
struct RecordContents {
  bool gate = true;
  bool biases = false;
  friend bool operator==(const RecordContents&, const RecordContents&) = default;
};

/// One expert as one contiguous blob: gate, up, down, each weights then scales, then biases,
/// `bytes` long (a multiple of kSectionAlignment). The same bytes on disk, in RAM and in HBM.
struct RecordLayout {
  ExpertFormat format = {};
  /// gate, up: [intermediate, hidden], the same bytes without a gate; down: [hidden, intermediate].
  MatrixLayout gate = {}, up = {}, down = {};
  RecordContents contents = {};
  int64_t bytes = 0;
  /// Not empty: the record is opaque (opaque_source.h), these are its parts, and the three matrices
  /// are empty. The library moves the record and never reads it.
  std::vector<RecordPart> parts = {};
  int64_t slot_multiple = 1;  // a slot that holds the record is a multiple of this many bytes long

  bool opaque() const { return !parts.empty(); }
  double stored_bits() const;  // per weight, scales and padding included
};

int64_t ScaleBytes(ScaleType type);  // of one scale

/// Fails when a dimension is not positive or a size would overflow.
absl::StatusOr<RecordLayout> MakeRecordLayout(int64_t hidden, int64_t intermediate,
                                              const ExpertFormat& format,
                                              const RecordContents& contents = {});

}  // namespace moert

#endif  // MOERT_SCHEME_H_
