// The header of one safetensors file.
#ifndef MOERT_LIB_CHECKPOINT_SAFETENSORS_HEADER_H_
#define MOERT_LIB_CHECKPOINT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/checkpoint.h"
#include "moert/tools/env.h"

namespace moert {

/// fp8 weights have one scale per block of this size; the last block of a row or column may be
/// smaller.
inline constexpr int64_t kFp8BlockRows = 128;
inline constexpr int64_t kFp8BlockCols = 128;

/// The header of one file, checked: sizes agree with shapes, the tensors cover the data without gap
/// or overlap, and the last ends where the file does. A header of N bytes takes at most
/// 3 N of memory.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by offset; `file` is 0
  int64_t data_offset = 0;
  TensorStorage storage;
};
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const RandomAccessFile& file);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_SAFETENSORS_HEADER_H_
