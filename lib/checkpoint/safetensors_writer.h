// Writing one safetensors file as a stream: all names and shapes first, then the data in that
// order.
#ifndef MOERT_LIB_CHECKPOINT_SAFETENSORS_WRITER_H_
#define MOERT_LIB_CHECKPOINT_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file_writer.h"
#include "moert/tensor.h"

namespace moert {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
};

/// The beginning of a file of these tensors: its header's length and the header, padded to a
/// multiple of kRecordAlignment. InvalidArgument if a size overflows.
absl::StatusOr<std::string> SafetensorsFileStart(const std::vector<TensorSpec>& tensors);

/// Not thread-safe.
class SafetensorsWriter {
 public:
  /// The header is padded with spaces, which the format allows, so that the data begins at a
  /// multiple of kRecordAlignment: a tensor whose predecessors have such sizes can be read
  /// directly. `mode` is the file's, less the umask.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   std::vector<TensorSpec> tensors,
                                                                   int mode = 0644);

  /// Continues a file that Create began for the same tensors, after its first `written` ones; later
  /// contents are dropped. DataLoss if the file is not such a one.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Resume(const std::string& path,
                                                                   std::vector<TensorSpec> tensors,
                                                                   size_t written);

  /// The offset of tensor `index` in the file.
  int64_t offset(size_t index) const { return offsets_[index]; }
  /// The size of the finished file.
  int64_t file_bytes() const { return offsets_.back(); }

  /// The whole data of the next tensor; shorter data is filled up with zeros.
  absl::Status Append(absl::Span<const std::byte> data);
  /// Flushes what was appended to the disk.
  absl::Status Sync() { return file_->Sync(); }
  /// All tensors must have been written. Flushes to the disk.
  absl::Status Finish();

 private:
  SafetensorsWriter() = default;
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Plan(const std::string& path,
                                                                 std::vector<TensorSpec> tensors);
  std::string start_;
  std::unique_ptr<FileWriter> file_;
  std::vector<TensorSpec> tensors_;
  std::vector<int64_t> offsets_;  // one more than tensors: the end
  size_t next_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_SAFETENSORS_WRITER_H_
