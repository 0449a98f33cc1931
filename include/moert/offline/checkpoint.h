// Reading safetensors: one file, or the shards of a checkpoint. Files are hostile input: no value
// of a header is trusted before it has been checked against the file's real size.
#ifndef MOERT_OFFLINE_CHECKPOINT_H_
#define MOERT_OFFLINE_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/tensor.h"
#include "moert/tools/env.h"

namespace moert {

/// Name and shape are borrowed from the checkpoint that it came with.
struct TensorInfo {
  absl::string_view name = {};
  absl::Span<const int64_t> shape = {};
  int64_t offset = 0;  // from the start of the file
  int64_t bytes = 0;
  int file = 0;  // index into Checkpoint::files()
  DType dtype = DType::kF32;
  /// Not empty: the tensor's type as the file has it, which is not known here. Then dtype is kU8,
  /// and Get and functions that read values refuse the tensor.
  absl::string_view unknown_type = {};

  int64_t elements() const { return bytes / DTypeBytes(dtype); }
};

/// Owns the names and shapes of a file's tensors; moving the struct keeps their addresses.
struct TensorStorage {
  std::string text = {};
  std::deque<std::string> names = {};  // those that are written with escapes
  std::vector<int64_t> sizes = {};
};

/// A model's tensors, whatever files they are in. Thread-safe after Open.
class Checkpoint {
 public:
  /// `path`: a directory with model.safetensors, or model.safetensors.index.json and its shards, or
  /// all of model-00001-of-0000N.safetensors without an index; or one .safetensors file. `env` is
  /// borrowed for the object's life.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path,
                                                          Env* env = Env::Default());

  /// Null if there is none.
  const TensorInfo* Find(absl::string_view name) const;
  /// NotFound naming the checkpoint and the tensor; Unimplemented where its type is not known.
  absl::StatusOr<const TensorInfo*> Get(absl::string_view name) const;
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  /// Tensors of shards that the index does not name: they are no part of the checkpoint.
  const std::vector<std::string>& unlisted() const { return unlisted_; }
  const RandomAccessFile& file(int index) const { return *files_[index]; }
  int num_files() const { return static_cast<int>(files_.size()); }

  /// Reads bytes [offset, offset + dst.size()) of a tensor. Blocking.
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t offset, absl::Span<std::byte> dst) const;
  /// The scales of a weight [..., rows, cols] that is stored as f8_e4m3, by which values are
  /// multiplied: the tensor NAME_scale_inv, else NAME_scale, floating point. Its shape is [...,
  /// ceil(rows / 128), ceil(cols / 128)], [..., rows, 1] or [..., rows], or it has one element.
  /// Null if there is none, or the weight is of another type. InvalidArgument if it does not fit.
  absl::StatusOr<const TensorInfo*> Fp8Scales(const TensorInfo& weight) const;
  /// Whether `tensor` is of a type that weights may have: bf16, f16, f32, or f8_e4m3 with scales.
  absl::Status CheckWeightType(const TensorInfo& tensor) const;
  /// Reads elements [first, first + dst.size()), widened to fp32. Floating-point tensors only; fp8
  /// times its scales, if it has any.
  absl::Status ReadAsF32(const TensorInfo& tensor, int64_t first, absl::Span<float> dst) const;
  /// The same as bf16 bits: bf16 is copied, all else rounded to nearest even.
  absl::Status ReadAsBf16(const TensorInfo& tensor, int64_t first, absl::Span<uint16_t> dst) const;
  /// A whole tensor of the shape that the caller expects, row-major.
  absl::StatusOr<std::vector<float>> ReadF32(absl::string_view name,
                                             absl::Span<const int64_t> shape) const;
  /// A tensor of i32 or i64 and of that shape; InvalidArgument if it is of others.
  absl::StatusOr<const TensorInfo*> GetIntegers(absl::string_view name,
                                                absl::Span<const int64_t> shape) const;
  /// A whole tensor of i32, or of i64 whose values fit.
  absl::StatusOr<std::vector<int32_t>> ReadI32(absl::string_view name,
                                               absl::Span<const int64_t> shape) const;

 private:
  Checkpoint() = default;
  absl::Status OpenFile(const std::string& path, Env* env);
  absl::Status OpenSharded(const std::string& dir, const std::string& index_path, Env* env);
  absl::Status OpenNumbered(const std::string& dir, Env* env);
  void BuildIndex();

  std::string path_;
  std::vector<std::unique_ptr<RandomAccessFile>> files_;
  std::deque<TensorStorage> storage_;  // by file; never moved
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // places in tensors_, sorted
  std::vector<std::string> unlisted_;
};

/// "[4, 128]"
std::string ShapeToString(absl::Span<const int64_t> shape);

}  // namespace moert

#endif  // MOERT_OFFLINE_CHECKPOINT_H_
