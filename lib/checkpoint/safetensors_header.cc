#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/other_files.h"

namespace moert {
namespace {

constexpr int64_t kPrefixBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as the reference implementation
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 1024;
constexpr int64_t kMaxElementBytes = 16;  // of a type that is not known here

struct DTypeCode {
  const char* code;
  DType dtype;
};
constexpr DTypeCode kDTypeCodes[] = {
    {"F32", DType::kF32},        {"BF16", DType::kBF16}, {"F16", DType::kF16},
    {"F8_E4M3", DType::kF8E4M3}, {"U8", DType::kU8},     {"I32", DType::kI32},
    {"I64", DType::kI64},        {"I8", DType::kI8},     {"F8_E8M0", DType::kF8E8M0},
    {"F8_E5M2", DType::kF8E5M2}, {"BOOL", DType::kBool}, {"I16", DType::kI16},
    {"U16", DType::kU16},        {"U32", DType::kU32},   {"U64", DType::kU64},
    {"F64", DType::kF64},
};

// A type that is not known here is harmless if nothing reads the tensor.
void ParseDType(JsonValue code, TensorInfo* t) {
  for (const DTypeCode& c : kDTypeCodes) {
    if (!code.Is(c.code)) continue;
    t->dtype = c.dtype;
    return;
  }
  t->dtype = DType::kU8;
  t->unknown_type = code.text();
}

absl::Status TensorError(const std::string& path, absl::string_view name, const std::string& what) {
  return InvalidArgument("{}: tensor \"{}\": {}", path, Printable(name), what);
}

// Parses where the data of `t` begins. Its size follows from the shape, or from the offsets if the
// type is unknown.
absl::Status ParseOffset(const std::string& path, JsonValue offsets, int64_t data_bytes,
                         TensorInfo* tensor) {
  TensorInfo& t = *tensor;
  const auto error = [&](const std::string& what) { return TensorError(path, t.name, what); };
  if (!offsets.is_array() || offsets.size() != 2) return error("data_offsets must be two integers");
  const auto first = offsets.elements().begin();
  auto second = first;
  ++second;
  const auto begin = (*first).AsInt(), end = (*second).AsInt();
  if (!begin || !end || *begin < 0 || *begin > *end) {
    return error("data_offsets must be two non-negative integers in ascending order");
  }
  if (*end > data_bytes) {
    return error(fmt::format("ends at {}, but the file holds only {} bytes of data (truncated?)",
                             *end, data_bytes));
  }
  const int64_t span = *end - *begin;
  if (!t.unknown_type.empty() && CeilDiv(span, kMaxElementBytes) <= t.bytes) t.bytes = span;
  if (span != t.bytes) {
    return error(fmt::format("{} {} takes {} bytes, but data_offsets span {}",
                             DTypeName(t.dtype).data(), ShapeToString(t.shape), t.bytes, span));
  }
  t.offset = *begin;
  return absl::OkStatus();
}

// `data_bytes` is what the file holds after its header; offsets are relative to that.
absl::StatusOr<TensorInfo> ParseTensor(const std::string& path, absl::string_view name,
                                       JsonValue entry, int64_t data_bytes,
                                       std::vector<int64_t>* sizes) {
  const auto error = [&](const std::string& what) { return TensorError(path, name, what); };
  if (name.empty() || name.size() > kMaxNameBytes) {
    return error(
        fmt::format("the name has {} bytes, legal is 1 to {}", name.size(), kMaxNameBytes));
  }
  if (!entry.is_object()) return error("its entry is not an object");
  const auto dtype = entry.Find("dtype");
  const auto shape = entry.Find("shape");
  const auto offsets = entry.Find("data_offsets");
  if (!dtype || !shape || !offsets || entry.size() != 3) {
    return error("its entry must have dtype, shape and data_offsets, and nothing else");
  }

  TensorInfo t;
  t.name = name;
  if (!dtype->is_string()) return error("its dtype is not a string");
  ParseDType(*dtype, &t);

  if (!shape->is_array() || shape->size() > kMaxRank) {
    return error(fmt::format("shape must be an array of at most {} sizes", kMaxRank));
  }
  const size_t first_size = sizes->size();
  Checked<int64_t> bytes(DTypeBytes(t.dtype));
  for (const JsonValue d : shape->elements()) {
    const auto size = d.AsInt();
    if (!size || *size < 0) return error("a size in shape is not a non-negative integer");
    sizes->push_back(*size);
    bytes.Mul(*size);
  }
  t.shape = absl::MakeConstSpan(*sizes).subspan(first_size);
  if (!bytes.value()) {
    return error(fmt::format("the size of shape {} overflows", ShapeToString(t.shape)));
  }
  t.bytes = *bytes.value();

  MOERT_RETURN_IF_ERROR(ParseOffset(path, *offsets, data_bytes, &t));
  return t;
}

// The tensors, sorted, must tile [0, data_bytes) exactly.
absl::Status CheckCoverage(const std::string& path, const std::vector<TensorInfo>& tensors,
                           int64_t data_bytes) {
  int64_t end = 0;
  for (const TensorInfo& t : tensors) {
    if (t.offset != end) {
      return InvalidArgument("{}: tensor \"{}\": starts at {}, but {} ends at {} ({})", path,
                             Printable(t.name), t.offset,
                             end == 0 ? "nothing" : "the one before it", end,
                             t.offset < end ? "overlap" : "gap");
    }
    end = t.offset + t.bytes;
  }
  if (end != data_bytes) {
    return InvalidArgument("{}: the last tensor ends at {}, but the file holds {} bytes of data",
                           path, end, data_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckMetadata(const std::string& path, JsonValue metadata) {
  if (!metadata.is_object()) return InvalidArgument("{}: __metadata__ is not an object", path);
  for (const JsonMember& m : metadata.members()) {
    if (m.value.is_string()) continue;
    return InvalidArgument("{}: __metadata__ {} is not a string", path, Printable(m.key.text()));
  }
  return absl::OkStatus();
}

// Reserves room for all tensors, so that views of the sizes stay valid and nothing grows beyond its
// need. An entry that lacks a field is refused later and takes no room.
void Reserve(JsonValue root, SafetensorsHeader* header) {
  size_t tensors = 0, sizes = 0;
  for (const JsonMember& m : root.members()) {
    if (m.key.Is("__metadata__")) continue;
    const auto shape = m.value.Find("shape");
    if (!shape || !m.value.Find("dtype") || !m.value.Find("data_offsets")) return;
    ++tensors;
    sizes += std::min(shape->size(), kMaxRank);
  }
  header->tensors.reserve(tensors);
  header->storage.sizes.reserve(sizes);
}

absl::string_view NameOf(JsonValue key, TensorStorage* storage) {
  const absl::string_view quoted = key.text();
  if (quoted.find('\\') == quoted.npos) return quoted.substr(1, quoted.size() - 2);
  return storage->names.emplace_back(*key.AsString());
}

// Recognizes other formats, found where a safetensors file is expected, by their first bytes. A
// safetensors length may begin with the same bytes: the file's header must look like one then.
absl::Status CheckOtherFormats(const std::string& path, absl::string_view begin, bool legal) {
  if (legal && begin.size() > kPrefixBytes && begin[kPrefixBytes] == '{') return absl::OkStatus();
  const absl::string_view text = begin.substr(0, kPrefixBytes);
  if (text == "version ") {
    return InvalidArgument(
        "{}: a Git LFS pointer, not the file that it stands for: fetch it with `git lfs pull`, or "
        "download the file itself",
        path);
  }
  if (text.substr(0, 4) == "GGUF") {
    return Unimplemented("{}: a GGUF file, and safetensors files are read; {}", path, kGgufWays);
  }
  if (text.substr(0, 2) == "PK" || static_cast<unsigned char>(text[0]) == 0x80) {
    return Unimplemented(
        "{}: a PyTorch file (pickle), and safetensors files are read: save the model with "
        "safe_serialization",
        path);
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsHeader> Parse(const RandomAccessFile& file) {
  const std::string& path = file.path();
  if (file.size() < kPrefixBytes) {
    return InvalidArgument("{}: {} bytes is too short for a safetensors file", path, file.size());
  }
  std::string begin(static_cast<size_t>(std::min(file.size(), kPrefixBytes + 1)), '\0');
  MOERT_RETURN_IF_ERROR(
      file.Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(begin.data()), begin.size())));
  uint64_t length = 0;  // little-endian, as the host
  std::memcpy(&length, begin.data(), sizeof(length));
  const bool legal = length <= static_cast<uint64_t>(kMaxHeaderBytes) &&
                     static_cast<int64_t>(length) <= file.size() - kPrefixBytes;
  MOERT_RETURN_IF_ERROR(CheckOtherFormats(path, begin, legal));
  if (!legal) {
    return InvalidArgument(
        "{}: a header of {} bytes, legal is up to {} and within the file's {} bytes", path, length,
        kMaxHeaderBytes, file.size());
  }
  std::string text(static_cast<size_t>(length), '\0');
  MOERT_RETURN_IF_ERROR(file.Read(
      kPrefixBytes, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  if (text.empty() || text[0] != '{') {
    return InvalidArgument("{}: the safetensors header does not start with {{", path);
  }
  MOERT_ASSIGN_OR_RETURN(JsonDocument document,
                         JsonDocument::Parse(std::move(text), path, {.max_depth = 4}));

  SafetensorsHeader header;
  header.data_offset = kPrefixBytes + static_cast<int64_t>(length);
  const int64_t data_bytes = file.size() - header.data_offset;
  Reserve(document.root(), &header);
  for (const JsonMember& m : document.root().members()) {
    if (m.key.Is("__metadata__")) {
      MOERT_RETURN_IF_ERROR(CheckMetadata(path, m.value));
      continue;
    }
    MOERT_ASSIGN_OR_RETURN(TensorInfo t, ParseTensor(path, NameOf(m.key, &header.storage), m.value,
                                                     data_bytes, &header.storage.sizes));
    header.tensors.push_back(t);
  }
  header.storage.text = std::move(document).TakeText();
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
            });
  MOERT_RETURN_IF_ERROR(CheckCoverage(path, header.tensors, data_bytes));
  for (TensorInfo& t : header.tensors) t.offset += header.data_offset;
  return header;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const RandomAccessFile& file) {
  try {
    return Parse(file);
  } catch (const std::bad_alloc&) {
    return OutOfMemory(file.path());
  }
}

}  // namespace moert
