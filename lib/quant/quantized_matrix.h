// A quantized weight matrix before it is packed: what every quantizer produces and every record
// stores.
#ifndef MOERT_LIB_QUANT_QUANTIZED_MATRIX_H_
#define MOERT_LIB_QUANT_QUANTIZED_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "moert/scheme.h"
#include "quant/code_tile.h"

namespace moert {

/// Codes u in [0, 2^bits) and one scale (asymmetric: also one offset) per row and group of k.
/// Scales and offsets are bf16 values held as float. A weight is
///   symmetric:   scale * (u - 2^(bits - 1))        asymmetric:   scale * u - offset
/// fp8 codes are e4m3 bits, fp4 codes e2m1 bits, and a weight is scale * value(u). Imported
/// schemes: scales are values of the scheme's type, offsets are integer zeros, a weight is scale *
/// (u - zero); all that times matrix_scale.
struct QuantizedMatrix {
  int64_t rows = 0;
  int64_t k = 0;
  int64_t group = 0;
  std::vector<uint8_t> codes;  // [rows, k]
  std::vector<float> scales;   // [rows, groups]
  std::vector<float> offsets;  // [rows, groups], asymmetric only
  float matrix_scale = 1;      // ScaleType::kE4M3 only

  int64_t groups() const { return (k + group - 1) / group; }
};

/// Converts a scale to its stored form and back. A value that the type lacks becomes the nearest
/// one.
uint32_t EncodeScale(ScaleType type, float scale);
float DecodeScale(ScaleType type, uint32_t bits);
/// The value of an e2m1 code.
float F4E2M1ToF32(uint8_t code);

/// Sized for a matrix of `layout`, all zero.
QuantizedMatrix MakeQuantizedMatrix(const MatrixLayout& layout);

/// Row-major fp32 [rows, k].
std::vector<float> Dequantize(const Scheme& scheme, const QuantizedMatrix& matrix);

/// Writes the weight and scale sections of one matrix (docs/reference/layout.md). `record` is the
/// start of the record. Padding rows get scale 0 (e8m0: the smallest), padding k code 0.
/// InvalidArgument names what does not fit the layout: shape, a code out of range, a scale that is
/// not finite or, in an imported scheme, no value of its type.
absl::Status PackMatrix(const MatrixLayout& layout, const QuantizedMatrix& matrix,
                        std::byte* record);
/// The parts of PackMatrix: the section of scales without the codes, and the codes of one tile,
/// whose first code is at (row, k).
absl::Status PackScales(const MatrixLayout& layout, const QuantizedMatrix& matrix,
                        std::byte* record);
absl::Status PackTile(const MatrixLayout& layout, int64_t row, int64_t k, const CodeTile& codes,
                      std::byte* record);
/// The inverse of PackMatrix, without padding.
absl::Status UnpackCodes(const MatrixLayout& layout, const std::byte* record,
                         QuantizedMatrix* matrix);

}  // namespace moert

#endif  // MOERT_LIB_QUANT_QUANTIZED_MATRIX_H_
