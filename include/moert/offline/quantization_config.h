// quantization_config of config.json: in which form a checkpoint's linear weights are stored.
#ifndef MOERT_OFFLINE_QUANTIZATION_CONFIG_H_
#define MOERT_OFFLINE_QUANTIZATION_CONFIG_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace moert {

/// docs/reference/checkpoints.md names the tensors of each.
enum class StoredWeights : int32_t {
  kPlain = 0,        // bf16, f16 or f32
  kFp8 = 1,          // fp8: e4m3, a scale for each block of 128 x 128, row or matrix
  kGptq = 2,         // gptq: int4
  kAwq = 3,          // awq: int4, version gemm
  kPackedInt4 = 4,   // compressed-tensors, format pack-quantized
  kInt8 = 5,         // compressed-tensors, format int-quantized
  kPackedFp4 = 6,    // compressed-tensors, format nvfp4-pack-quantized
  kModeloptFp4 = 7,  // modelopt: NVFP4
  kMxfp4 = 8,        // mxfp4: gpt-oss
  kMxfp4Rows = 9,    // fp8 with expert_dtype fp4: experts of deepseek_v4, among fp8 of the others
};

struct QuantizationConfig {
  StoredWeights form = StoredWeights::kPlain;
  int64_t group = 0;         // the int4 forms: channels that share a scale; -1: all of a row
  bool symmetric = true;     // the int4 forms
  bool less_one = false;     // kGptq: stored zero points are one less than their value
  bool int8_inputs = false;  // kInt8: activations are quantized, too, a scale a token

  /// The int4 forms: the largest group, in channels, that a record with rows of `k` channels can
  /// have, a group of the file or a part of it; 0: none fits.
  int64_t RecordGroup(int64_t k) const;

  friend bool operator==(const QuantizationConfig&, const QuantizationConfig&) = default;
};

/// "gptq", "compressed-tensors int4", ...
absl::string_view StoredWeightsName(StoredWeights form);

}  // namespace moert

#endif  // MOERT_OFFLINE_QUANTIZATION_CONFIG_H_
