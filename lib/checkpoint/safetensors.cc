#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <new>
#include <utility>

#include "base/bf16.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors_header.h"
#include "moert/offline/checkpoint.h"

namespace moert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxShards = 10'000;
constexpr size_t kChunkElements = 64 * 1024;

fmt::string_view View(absl::string_view s) { return {s.data(), s.size()}; }

bool Exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

// Shards lie beside their index; anything else is an attempt to read other files.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() < 256 &&
         name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

float ElementToF32(DType dtype, const std::byte* raw, size_t i);

// Multiplies fp8 values by the scales of their blocks.
class Fp8Scaler {
 public:
  static absl::StatusOr<Fp8Scaler> Load(const Checkpoint& checkpoint, const TensorInfo& weight) {
    Fp8Scaler scaler;
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint.Fp8Scales(weight));
    if (scales == nullptr) return scaler;
    scaler.rows_ = weight.shape[weight.shape.size() - 2];
    scaler.cols_ = weight.shape.back();
    scaler.scale_cols_ = scales->shape.back();
    scaler.scale_rows_ = scales->shape[scales->shape.size() - 2];
    scaler.scales_.resize(static_cast<size_t>(scales->elements()));
    MOERT_RETURN_IF_ERROR(checkpoint.ReadAsF32(*scales, 0, absl::MakeSpan(scaler.scales_)));
    return scaler;
  }
  bool empty() const { return scales_.empty(); }

  /// values: elements [first, first + count) of the weight.
  void Apply(int64_t first, size_t count, float* values) const {
    const int64_t end = first + static_cast<int64_t>(count);
    for (int64_t at = first; at < end;) {
      const int64_t row = at / cols_, col = at % cols_;
      const int64_t block_row = row / rows_ * scale_rows_ + row % rows_ / kFp8BlockRows;
      const float scale =
          scales_[static_cast<size_t>(block_row * scale_cols_ + col / kFp8BlockCols)];
      // Up to the end of the block's row, or of the matrix's.
      const int64_t run = std::min((col / kFp8BlockCols + 1) * kFp8BlockCols, cols_) - col;
      for (const int64_t stop = std::min(end, at + run); at < stop; ++at)
        values[at - first] *= scale;
    }
  }

 private:
  int64_t rows_ = 0, cols_ = 0, scale_rows_ = 0, scale_cols_ = 0;
  std::vector<float> scales_;
};

// Reads elements in chunks through `convert(dtype, raw, count, out)`.
template <typename T, typename Convert>
absl::Status ReadConverted(const Checkpoint& checkpoint, const TensorInfo& tensor, int64_t first,
                           absl::Span<T> dst, Convert convert) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF8E4M3:
      break;
    default:
      return absl::InvalidArgumentError(fmt::format(
          "{}: tensor \"{}\": dtype {} cannot be read as floating point, legal are f32, bf16, f16, "
          "f8_e4m3",
          checkpoint.file(tensor.file).path(), tensor.name, View(DTypeName(tensor.dtype))));
  }
  Fp8Scaler scaler;
  std::vector<float> scaled;
  if (tensor.dtype == DType::kF8E4M3) {
    MOERT_ASSIGN_OR_RETURN(scaler, Fp8Scaler::Load(checkpoint, tensor));
    if (!scaler.empty()) scaled.resize(std::min(dst.size(), kChunkElements));
  }
  const int64_t width = DTypeBytes(tensor.dtype);
  std::vector<std::byte> raw(std::min(dst.size(), kChunkElements) * static_cast<size_t>(width));
  for (size_t done = 0; done < dst.size();) {
    const size_t n = std::min(dst.size() - done, kChunkElements);
    const absl::Span<std::byte> bytes(raw.data(), n * static_cast<size_t>(width));
    MOERT_RETURN_IF_ERROR(
        checkpoint.ReadBytes(tensor, (first + static_cast<int64_t>(done)) * width, bytes));
    if (scaler.empty()) {
      convert(tensor.dtype, raw.data(), n, dst.data() + done);
    } else {
      for (size_t i = 0; i < n; ++i) scaled[i] = ElementToF32(tensor.dtype, raw.data(), i);
      scaler.Apply(first + static_cast<int64_t>(done), n, scaled.data());
      convert(DType::kF32, reinterpret_cast<const std::byte*>(scaled.data()), n, dst.data() + done);
    }
    done += n;
  }
  return absl::OkStatus();
}

float LoadF32(const std::byte* p) {
  float f;
  std::memcpy(&f, p, sizeof(f));
  return f;
}
uint16_t LoadU16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

float ElementToF32(DType dtype, const std::byte* raw, size_t i) {
  switch (dtype) {
    case DType::kF32:
      return LoadF32(raw + 4 * i);
    case DType::kBF16:
      return Bf16ToF32(LoadU16(raw + 2 * i));
    case DType::kF16:
      return F16ToF32(LoadU16(raw + 2 * i));
    case DType::kF8E4M3:
      return F8E4M3ToF32(std::to_integer<uint8_t>(raw[i]));
    default:
      return 0.0f;  // excluded by ReadConverted
  }
}

}  // namespace

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path, Env* env) {
  try {
    std::unique_ptr<Checkpoint> c(new Checkpoint);
    c->path_ = path;
    std::error_code ec;
    if (!fs::is_directory(path, ec)) {
      MOERT_RETURN_IF_ERROR(c->OpenFile(path, env));
    } else if (const std::string single = path + "/model.safetensors"; Exists(single)) {
      MOERT_RETURN_IF_ERROR(c->OpenFile(single, env));
    } else if (const std::string index = path + "/model.safetensors.index.json"; Exists(index)) {
      MOERT_RETURN_IF_ERROR(c->OpenSharded(path, index, env));
    } else {
      return absl::NotFoundError(fmt::format(
          "{}: no checkpoint here: neither model.safetensors nor model.safetensors.index.json",
          path));
    }
    c->BuildIndex();
    return c;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: out of memory while opening", path));
  }
}

absl::Status Checkpoint::OpenFile(const std::string& path, Env* env) {
  MOERT_ASSIGN_OR_RETURN(auto file, env->Open(path, FileAccess::kBuffered));
  MOERT_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(*file));
  tensors_ = std::move(header.tensors);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenSharded(const std::string& dir, const std::string& index_path,
                                     Env* env) {
  MOERT_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonFile(env, index_path));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}: weight_map is not an object", index_path));
  }
  std::map<std::string, std::vector<std::string>> shards;  // file -> tensors
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          fmt::format("{}: tensor \"{}\": its file must be a plain file name in the same folder",
                      index_path, name));
    }
    shards[file.get<std::string>()].push_back(name);
  }
  if (shards.size() > kMaxShards) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} shards, the limit is {}", index_path, shards.size(), kMaxShards));
  }
  for (const auto& [file_name, names] : shards) {
    auto file = env->Open(dir + "/" + file_name, FileAccess::kBuffered);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          fmt::format("{}: shard {} of tensor \"{}\": {}", index_path, file_name,
                                      names.front(), View(file.status().message())));
    }
    MOERT_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(**file));
    std::map<absl::string_view, TensorInfo*> found;
    for (TensorInfo& t : header.tensors) found.emplace(t.name, &t);
    std::vector<TensorInfo*> wanted;
    for (const std::string& name : names) {
      const auto it = found.find(name);
      if (it == found.end()) {
        return absl::InvalidArgumentError(fmt::format(
            "{}: tensor \"{}\" is not in {} as the index says", index_path, name, file_name));
      }
      wanted.push_back(it->second);
    }
    // Tensors that a shard has but the index does not name stay out, as they do elsewhere.
    for (TensorInfo* t : wanted) {
      t->file = static_cast<int>(files_.size());
      tensors_.push_back(std::move(*t));
    }
    files_.push_back(*std::move(file));
  }
  return absl::OkStatus();
}

void Checkpoint::BuildIndex() {
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const TensorInfo* Checkpoint::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<const TensorInfo*> Checkpoint::Get(absl::string_view name) const {
  if (const TensorInfo* t = Find(name); t != nullptr) return t;
  return absl::NotFoundError(fmt::format("{}: tensor \"{}\" is missing", path_, View(name)));
}

absl::Status Checkpoint::ReadBytes(const TensorInfo& tensor, int64_t offset,
                                   absl::Span<std::byte> dst) const {
  if (offset < 0 || offset > tensor.bytes ||
      static_cast<int64_t>(dst.size()) > tensor.bytes - offset) {
    return absl::OutOfRangeError(fmt::format("{}: tensor \"{}\": {} bytes at {} asked of {}",
                                             file(tensor.file).path(), tensor.name, dst.size(),
                                             offset, tensor.bytes));
  }
  return file(tensor.file).Read(tensor.offset + offset, dst);
}

absl::StatusOr<const TensorInfo*> Checkpoint::Fp8Scales(const TensorInfo& weight) const {
  if (weight.dtype != DType::kF8E4M3 || weight.shape.size() < 2) return nullptr;
  const TensorInfo* scales = Find(weight.name + "_scale_inv");
  if (scales == nullptr) return nullptr;
  std::vector<int64_t> expected = weight.shape;
  const size_t rank = expected.size();
  expected[rank - 2] =
      expected[rank - 2] / kFp8BlockRows + (expected[rank - 2] % kFp8BlockRows > 0);
  expected[rank - 1] =
      expected[rank - 1] / kFp8BlockCols + (expected[rank - 1] % kFp8BlockCols > 0);
  const bool floating =
      scales->dtype == DType::kF32 || scales->dtype == DType::kBF16 || scales->dtype == DType::kF16;
  if (scales->shape != expected || !floating) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: tensor \"{}\": it is {} {}, legal for the scales of {} are f32, bf16 and f16 of "
        "shape {}",
        file(scales->file).path(), scales->name, View(DTypeName(scales->dtype)),
        ShapeToString(scales->shape), ShapeToString(weight.shape), ShapeToString(expected)));
  }
  return scales;
}

absl::Status Checkpoint::CheckWeightType(const TensorInfo& tensor) const {
  if (tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32) {
    return absl::OkStatus();
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, Fp8Scales(tensor));
  if (scales != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "{}: tensor \"{}\": its type is {}, legal are bf16, f16, f32, and f8_e4m3 with the scales of "
      "its {} x {} blocks in {}_scale_inv",
      file(tensor.file).path(), tensor.name, View(DTypeName(tensor.dtype)), kFp8BlockRows,
      kFp8BlockCols, tensor.name));
}

absl::Status Checkpoint::ReadAsF32(const TensorInfo& tensor, int64_t first,
                                   absl::Span<float> dst) const {
  return ReadConverted(*this, tensor, first, dst,
                       [](DType dtype, const std::byte* raw, size_t n, float* out) {
                         for (size_t i = 0; i < n; ++i) out[i] = ElementToF32(dtype, raw, i);
                       });
}

absl::Status Checkpoint::ReadAsBf16(const TensorInfo& tensor, int64_t first,
                                    absl::Span<uint16_t> dst) const {
  return ReadConverted(*this, tensor, first, dst,
                       [](DType dtype, const std::byte* raw, size_t n, uint16_t* out) {
                         if (dtype == DType::kBF16) {
                           std::memcpy(out, raw, n * 2);
                           return;
                         }
                         for (size_t i = 0; i < n; ++i) {
                           out[i] = F32ToBf16(ElementToF32(dtype, raw, i));
                         }
                       });
}

absl::StatusOr<std::vector<float>> Checkpoint::ReadF32(absl::string_view name,
                                                       absl::Span<const int64_t> shape) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, Get(name));
  if (absl::MakeConstSpan(t->shape) != shape) {
    return absl::InvalidArgumentError(fmt::format("{}: tensor \"{}\": its shape is {}, expected {}",
                                                  file(t->file).path(), t->name,
                                                  ShapeToString(t->shape), ShapeToString(shape)));
  }
  try {
    std::vector<float> values(static_cast<size_t>(t->elements()));
    MOERT_RETURN_IF_ERROR(ReadAsF32(*t, 0, absl::MakeSpan(values)));
    return values;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format(
        "{}: tensor \"{}\": out of memory for {} elements", path_, t->name, t->elements()));
  }
}

}  // namespace moert
