#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "base/bf16.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/fp8_scaler.h"
#include "checkpoint/other_files.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shard_index.h"
#include "moert/offline/checkpoint.h"

namespace moert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkElements = 64 * 1024;

fmt::string_view View(absl::string_view s) { return {s.data(), s.size()}; }

bool Exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

std::vector<uint32_t> SortedByName(const std::vector<TensorInfo>& tensors) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

const TensorInfo* FindByName(const std::vector<TensorInfo>& tensors,
                             const std::vector<uint32_t>& sorted, absl::string_view name) {
  const auto it =
      std::lower_bound(sorted.begin(), sorted.end(), name,
                       [&](uint32_t i, absl::string_view n) { return tensors[i].name < n; });
  return it == sorted.end() || tensors[*it].name != name ? nullptr : &tensors[*it];
}

// 2^(e - 127); 255 is no number.
float F8E8M0ToF32(uint8_t e) {
  return e == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int{e} - 127);
}
uint16_t LoadU16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

constexpr auto kF8Values = [] {
  std::array<float, 256> values = {};
  for (size_t i = 0; i < values.size(); ++i) values[i] = F8E4M3ToF32(static_cast<uint8_t>(i));
  return values;
}();

void ElementsToF32(DType dtype, const std::byte* raw, size_t n, float* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, raw, n * sizeof(float));
      return;
    case DType::kBF16:
      for (size_t i = 0; i < n; ++i) out[i] = Bf16ToF32(LoadU16(raw + 2 * i));
      return;
    case DType::kF16:
      for (size_t i = 0; i < n; ++i) out[i] = F16ToF32(LoadU16(raw + 2 * i));
      return;
    case DType::kF8E4M3:
      for (size_t i = 0; i < n; ++i) out[i] = kF8Values[std::to_integer<uint8_t>(raw[i])];
      return;
    case DType::kF8E8M0:
      for (size_t i = 0; i < n; ++i) out[i] = F8E8M0ToF32(std::to_integer<uint8_t>(raw[i]));
      return;
    default:
      return;  // excluded by ReadConverted
  }
}

void ElementsToBf16(DType dtype, const std::byte* raw, size_t n, uint16_t* out) {
  float wide[256];
  for (size_t done = 0; done < n;) {
    const size_t count = std::min(n - done, std::size(wide));
    ElementsToF32(dtype, raw + done * static_cast<size_t>(DTypeBytes(dtype)), count, wide);
    for (size_t i = 0; i < count; ++i) out[done++] = F32ToBf16(wide[i]);
  }
}

// Reads elements in chunks through `convert(dtype, raw, count, out)`.
template <typename T, typename Convert>
absl::Status ReadConverted(const Checkpoint& checkpoint, const TensorInfo& tensor, int64_t first,
                           absl::Span<T> dst, Convert convert) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF8E4M3:
    case DType::kF8E8M0:
      break;
    default:
      return InvalidArgument(
          "{}: tensor \"{}\": dtype {} cannot be read as floating point, legal are f32, bf16, f16, "
          "f8_e4m3, f8_e8m0",
          checkpoint.file(tensor.file).path(), Printable(tensor.name),
          View(DTypeName(tensor.dtype)));
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
      ElementsToF32(tensor.dtype, raw.data(), n, scaled.data());
      scaler.Apply(first + static_cast<int64_t>(done), n, scaled.data());
      convert(DType::kF32, reinterpret_cast<const std::byte*>(scaled.data()), n, dst.data() + done);
    }
    done += n;
  }
  return absl::OkStatus();
}

}  // namespace

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path,
                                                             Env* env) try {
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
      MOERT_RETURN_IF_ERROR(c->OpenNumbered(path, env));
    }
    c->BuildIndex();
    return c;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(path);
  }
} catch (...) {
  return ExceptionStatus("opening a checkpoint");
}

absl::Status Checkpoint::OpenFile(const std::string& path, Env* env) {
  MOERT_ASSIGN_OR_RETURN(auto file, env->Open(path, FileAccess::kBuffered));
  MOERT_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(*file));
  for (TensorInfo& t : header.tensors) t.file = static_cast<int>(files_.size());
  tensors_.insert(tensors_.end(), header.tensors.begin(), header.tensors.end());
  storage_.push_back(std::move(header.storage));
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenSharded(const std::string& dir, const std::string& index_path,
                                     Env* env) {
  MOERT_ASSIGN_OR_RETURN(const JsonDocument index, JsonDocument::Read(env, index_path));
  MOERT_ASSIGN_OR_RETURN(const std::vector<ShardFile> shards, ReadShardIndex(index, index_path));
  for (const ShardFile& shard : shards) {
    auto file = env->Open(dir + "/" + shard.file, FileAccess::kBuffered);
    if (!file.ok()) {
      return absl::Status(
          file.status().code(),
          fmt::format("{}: shard {} of tensor {}: {}", index_path, Printable(shard.file),
                      Printable(shard.tensors[0].text()), View(file.status().message())));
    }
    MOERT_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(**file));
    const std::vector<uint32_t> by_name = SortedByName(header.tensors);
    std::vector<bool> listed(header.tensors.size(), false);
    for (const JsonValue key : shard.tensors) {
      const std::string name = *key.AsString();
      const TensorInfo* found = FindByName(header.tensors, by_name, name);
      if (found == nullptr) {
        return InvalidArgument("{}: tensor \"{}\" is not in {} as the index says", index_path,
                               Printable(name), Printable(shard.file));
      }
      listed[found - header.tensors.data()] = true;
      tensors_.push_back(*found);
      tensors_.back().file = static_cast<int>(files_.size());
    }
    for (size_t i = 0; i < listed.size(); ++i) {
      if (!listed[i]) unlisted_.emplace_back(header.tensors[i].name);
    }
    storage_.push_back(std::move(header.storage));
    files_.push_back(*std::move(file));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenNumbered(const std::string& dir, Env* env) {
  MOERT_ASSIGN_OR_RETURN(const std::vector<std::string> shards, NumberedShards(dir));
  if (shards.empty()) {
    return NotFound(
        "{}: no checkpoint here: neither model.safetensors nor model.safetensors.index.json{}", dir,
        OtherFiles(dir));
  }
  for (const std::string& name : shards) MOERT_RETURN_IF_ERROR(OpenFile(dir + "/" + name, env));
  const std::vector<uint32_t> order = SortedByName(tensors_);
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& t = tensors_[order[i]];
    if (t.name != tensors_[order[i - 1]].name) continue;
    return InvalidArgument("{}: tensor \"{}\" is in two shards", dir, Printable(t.name));
  }
  return absl::OkStatus();
}

void Checkpoint::BuildIndex() { by_name_ = SortedByName(tensors_); }

const TensorInfo* Checkpoint::Find(absl::string_view name) const {
  return FindByName(tensors_, by_name_, name);
}

absl::StatusOr<const TensorInfo*> Checkpoint::Get(absl::string_view name) const try {
  if (const TensorInfo* t = Find(name); t != nullptr) {
    if (t->unknown_type.empty()) return t;
    return Unimplemented("{}: tensor \"{}\": its type {} is not read", file(t->file).path(),
                         Printable(name), Printable(t->unknown_type));
  }
  return NotFound("{}: tensor \"{}\" is missing", path_, Printable(name));
} catch (...) {
  return ExceptionStatus(path_);
}

absl::Status Checkpoint::ReadBytes(const TensorInfo& tensor, int64_t offset,
                                   absl::Span<std::byte> dst) const try {
  if (offset < 0 || offset > tensor.bytes ||
      static_cast<int64_t>(dst.size()) > tensor.bytes - offset) {
    return OutOfRange("{}: tensor \"{}\": {} bytes at {} asked of {}", file(tensor.file).path(),
                      Printable(tensor.name), dst.size(), offset, tensor.bytes);
  }
  return file(tensor.file).Read(tensor.offset + offset, dst);
} catch (...) {
  return ExceptionStatus(path_);
}

absl::Status Checkpoint::ReadAsF32(const TensorInfo& tensor, int64_t first,
                                   absl::Span<float> dst) const try {
  return ReadConverted(*this, tensor, first, dst, ElementsToF32);
} catch (...) {
  return ExceptionStatus(path_);
}

absl::Status Checkpoint::ReadAsBf16(const TensorInfo& tensor, int64_t first,
                                    absl::Span<uint16_t> dst) const try {
  if (tensor.dtype == DType::kBF16) {
    return ReadBytes(tensor, first * 2,
                     absl::MakeSpan(reinterpret_cast<std::byte*>(dst.data()), dst.size() * 2));
  }
  return ReadConverted(*this, tensor, first, dst, ElementsToBf16);
} catch (...) {
  return ExceptionStatus(path_);
}

absl::StatusOr<const TensorInfo*> Checkpoint::GetIntegers(absl::string_view name,
                                                          absl::Span<const int64_t> shape) const
    try {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, Get(name));
  const bool integers = t->dtype == DType::kI64 || t->dtype == DType::kI32;
  if (integers && absl::MakeConstSpan(t->shape) == shape) return t;
  return InvalidArgument("{}: tensor \"{}\": it is {} {}, expected i32 or i64 {}",
                         file(t->file).path(), Printable(t->name), View(DTypeName(t->dtype)),
                         ShapeToString(t->shape), ShapeToString(shape));
} catch (...) {
  return ExceptionStatus(path_);
}

absl::StatusOr<std::vector<int32_t>> Checkpoint::ReadI32(absl::string_view name,
                                                         absl::Span<const int64_t> shape) const
    try {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, GetIntegers(name, shape));
  const bool wide = t->dtype == DType::kI64;
  std::vector<int32_t> values(t->elements());
  if (!wide) {
    MOERT_RETURN_IF_ERROR(
        ReadBytes(*t, 0, {reinterpret_cast<std::byte*>(values.data()), values.size() * 4}));
    return values;
  }
  std::vector<int64_t> raw(values.size());
  MOERT_RETURN_IF_ERROR(
      ReadBytes(*t, 0, {reinterpret_cast<std::byte*>(raw.data()), raw.size() * 8}));
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] < INT32_MIN || raw[i] > INT32_MAX) {
      return InvalidArgument("{}: tensor \"{}\": element {} is {}, legal are 32 bits",
                             file(t->file).path(), Printable(t->name), i, raw[i]);
    }
    values[i] = static_cast<int32_t>(raw[i]);
  }
  return values;
} catch (...) {
  return ExceptionStatus(path_);
}

absl::StatusOr<std::vector<float>> Checkpoint::ReadF32(absl::string_view name,
                                                       absl::Span<const int64_t> shape) const try {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, Get(name));
  if (absl::MakeConstSpan(t->shape) != shape) {
    return InvalidArgument("{}: tensor \"{}\": its shape is {}, expected {}", file(t->file).path(),
                           Printable(t->name), ShapeToString(t->shape), ShapeToString(shape));
  }
  std::vector<float> values(t->elements());
  MOERT_RETURN_IF_ERROR(ReadAsF32(*t, 0, absl::MakeSpan(values)));
  return values;
} catch (...) {
  return ExceptionStatus(path_);
}

}  // namespace moert
