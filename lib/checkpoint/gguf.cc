#include "moert/offline/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/printable.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxEntries = 1 << 20;
constexpr uint64_t kMaxName = 1024;
constexpr uint32_t kMaxDimensions = 8;
constexpr uint64_t kMaxList = 8192;  // longer lists are a tokenizer's
constexpr int kMaxFiles = 10'000;

struct Type {
  uint32_t id;
  const char* name;
  int64_t values, bytes;  // of a block
};
constexpr Type kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36}};

enum ValueType : uint32_t { kString = 8, kArray = 9, kValueTypes = 13 };
// The size of a value by its type; 0: the value has a length of its own.
constexpr int64_t kValueBytes[kValueTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr bool IsInteger(uint32_t type) { return type <= 5 || type == 10 || type == 11; }

// Reads a file from start to end, a piece at a time.
class Cursor {
 public:
  Cursor(const RandomAccessFile* file) : file_(file), buffer_(size_t{64} << 10) {}

  int64_t place() const { return place_; }
  int64_t left() const { return file_->size() - place_; }
  const std::string& path() const { return file_->path(); }

  absl::Status Skip(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(left())) return Short();
    place_ += static_cast<int64_t>(bytes);
    return absl::OkStatus();
  }
  absl::Status Read(void* to, int64_t bytes) {
    if (bytes > left()) return Short();
    if (place_ < begin_ || place_ + bytes > end_) MOERT_RETURN_IF_ERROR(Fill());
    std::memcpy(to, buffer_.data() + (place_ - begin_), bytes);
    place_ += bytes;
    return absl::OkStatus();
  }
  template <typename T>
  absl::StatusOr<T> Number() {
    T value{};
    MOERT_RETURN_IF_ERROR(Read(&value, sizeof value));
    return value;
  }
  /// A string of at most `limit` bytes.
  absl::StatusOr<std::string> Text(const char* what, uint64_t limit) {
    MOERT_ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>());
    if (length > limit) {
      return Error(fmt::format("{} of {} bytes at byte {}: legal are at most {}", what, length,
                               place_, limit));
    }
    std::string text(static_cast<size_t>(length), '\0');
    MOERT_RETURN_IF_ERROR(Read(text.data(), static_cast<int64_t>(length)));
    return text;
  }
  absl::Status Error(const std::string& what) const {
    return InvalidArgument("{}: {}", path(), what);
  }
  absl::Status Short() const {
    return Error(
        fmt::format("the file of {} bytes ends within its header; fetch it again", file_->size()));
  }

 private:
  absl::Status Fill() {
    begin_ = place_;
    end_ = begin_ + std::min<int64_t>(left(), static_cast<int64_t>(buffer_.size()));
    return file_->Read(begin_, {buffer_.data(), static_cast<size_t>(end_ - begin_)});
  }

  const RandomAccessFile* const file_;
  std::vector<std::byte> buffer_;  // [begin_, end_) of the file
  int64_t begin_ = 0, end_ = 0, place_ = 0;
};

// The values that are used here, by key.
struct Values {
  std::map<std::string, int64_t> numbers;  // of an array: its largest
  std::map<std::string, std::string> texts;

  int64_t Number(const std::string& key) const {
    const auto it = numbers.find(key);
    return it == numbers.end() ? 0 : it->second;
  }
  std::string Text(const std::string& key) const {
    const auto it = texts.find(key);
    return it == texts.end() ? "" : it->second;
  }
};

absl::StatusOr<int64_t> ReadInteger(Cursor* in, uint32_t type) {
  std::byte raw[8] = {};
  MOERT_RETURN_IF_ERROR(in->Read(raw, kValueBytes[type]));
  uint64_t value = 0;
  std::memcpy(&value, raw, sizeof value);  // little-endian, as the files and x86-64 are
  return static_cast<int64_t>(
      std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));  // sizes: never negative
}

absl::Status ReadArray(Cursor* in, const std::string& key, Values* values) {
  MOERT_ASSIGN_OR_RETURN(const uint32_t type, in->Number<uint32_t>());
  MOERT_ASSIGN_OR_RETURN(const uint64_t count, in->Number<uint64_t>());
  if (type >= kValueTypes || type == kArray) {
    return in->Error(
        fmt::format("{}: elements of type {}; legal are 0 to 12 without 9", Printable(key), type));
  }
  if (type == kString) {
    for (uint64_t i = 0; i < count; ++i) {
      MOERT_ASSIGN_OR_RETURN(const uint64_t length, in->Number<uint64_t>());
      MOERT_RETURN_IF_ERROR(in->Skip(length));
    }
    return absl::OkStatus();
  }
  const auto bytes = CheckedMul<uint64_t>(count, static_cast<uint64_t>(kValueBytes[type]));
  if (!bytes || *bytes > static_cast<uint64_t>(in->left())) return in->Short();
  if (!IsInteger(type) || count > kMaxList) return in->Skip(*bytes);
  int64_t largest = 0;
  for (uint64_t i = 0; i < count; ++i) {
    MOERT_ASSIGN_OR_RETURN(const int64_t value, ReadInteger(in, type));
    largest = std::max(largest, value);
  }
  values->numbers[key] = largest;
  return absl::OkStatus();
}

absl::Status ReadValue(Cursor* in, Values* values) {
  MOERT_ASSIGN_OR_RETURN(const std::string key, in->Text("a key", kMaxName));
  MOERT_ASSIGN_OR_RETURN(const uint32_t type, in->Number<uint32_t>());
  if (type >= kValueTypes) {
    return in->Error(fmt::format("{}: type {}; legal are 0 to 12", Printable(key), type));
  }
  if (type == kArray) return ReadArray(in, key, values);
  if (type == kString) {
    if (key == "general.architecture" || key == "general.name") {
      MOERT_ASSIGN_OR_RETURN(values->texts[key], in->Text(key.c_str(), kMaxName));
      return absl::OkStatus();
    }
    MOERT_ASSIGN_OR_RETURN(const uint64_t length, in->Number<uint64_t>());
    return in->Skip(length);
  }
  if (!IsInteger(type)) return in->Skip(static_cast<uint64_t>(kValueBytes[type]));
  MOERT_ASSIGN_OR_RETURN(values->numbers[key], ReadInteger(in, type));
  return absl::OkStatus();
}

absl::StatusOr<GgufTensor> ReadTensor(Cursor* in, uint64_t* offset) {
  GgufTensor tensor;
  MOERT_ASSIGN_OR_RETURN(tensor.name, in->Text("a tensor's name", kMaxName));
  MOERT_ASSIGN_OR_RETURN(const uint32_t dimensions, in->Number<uint32_t>());
  const auto fail = [&](const std::string& what) {
    return in->Error(fmt::format("tensor {}: {}", Printable(tensor.name), what));
  };
  if (dimensions > kMaxDimensions) {
    return fail(fmt::format("{} dimensions; legal are at most {}", dimensions, kMaxDimensions));
  }
  Checked<int64_t> values(1);
  for (uint32_t d = 0; d < dimensions; ++d) {
    MOERT_ASSIGN_OR_RETURN(const uint64_t size, in->Number<uint64_t>());
    if (size > uint64_t{1} << 48) return fail(fmt::format("a size of {}; too large", size));
    tensor.shape.push_back(static_cast<int64_t>(size));
    values.Mul(static_cast<int64_t>(size));
  }
  MOERT_ASSIGN_OR_RETURN(const uint32_t id, in->Number<uint32_t>());
  MOERT_ASSIGN_OR_RETURN(*offset, in->Number<uint64_t>());
  const Type* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.id == id; });
  if (type == std::end(kTypes)) return fail(fmt::format("type {}, which is not known", id));
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape[0];
  if (row % type->values != 0) {
    return fail(
        fmt::format("rows of {}; legal for {} are multiples of {}", row, type->name, type->values));
  }
  if (values.value()) values = Checked<int64_t>(*values.value() / type->values);
  values.Mul(type->bytes);
  if (!values.value()) return fail("its size overflows");
  tensor.type = type->name;
  tensor.bytes = *values.value();
  return tensor;
}

absl::Status ReadFile(const std::string& path, Env* env, Values* values,
                      std::vector<GgufTensor>* tensors) {
  MOERT_ASSIGN_OR_RETURN(const auto file, env->Open(path, FileAccess::kBuffered));
  Cursor in(file.get());
  MOERT_ASSIGN_OR_RETURN(const uint32_t magic, in.Number<uint32_t>());
  MOERT_ASSIGN_OR_RETURN(const uint32_t version, in.Number<uint32_t>());
  if (magic != kMagic) return in.Error("no GGUF file: it does not begin with GGUF");
  if (version != 2 && version != 3) {
    return in.Error(fmt::format("GGUF version {}; legal are 2 and 3, little-endian", version));
  }
  MOERT_ASSIGN_OR_RETURN(const uint64_t count, in.Number<uint64_t>());
  MOERT_ASSIGN_OR_RETURN(const uint64_t entries, in.Number<uint64_t>());
  if (count > kMaxEntries || entries > kMaxEntries) {
    return in.Error(fmt::format("{} tensors and {} values; legal are at most {} of each", count,
                                entries, kMaxEntries));
  }
  for (uint64_t i = 0; i < entries; ++i) MOERT_RETURN_IF_ERROR(ReadValue(&in, values));
  int64_t end = 0;  // of the tensors' data, from where it begins
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t offset = 0;
    MOERT_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(&in, &offset));
    if (offset > static_cast<uint64_t>(file->size()) || tensor.bytes > file->size()) {
      return in.Error(
          fmt::format("tensor {}: {} bytes from {} on lie beyond the file's {}; fetch it again",
                      Printable(tensor.name), tensor.bytes, offset, file->size()));
    }
    end = std::max(end, static_cast<int64_t>(offset) + tensor.bytes);
    tensors->push_back(std::move(tensor));
  }
  if (end > in.left()) {
    return in.Error(
        fmt::format("the file of {} bytes is cut short: its tensors end at byte {}; fetch it again",
                    file->size(), in.place() + end));
  }
  return absl::OkStatus();
}

// Splits the path of a split model: "model-" and 3 for model-00002-of-00003.gguf; nothing for other
// names.
std::optional<std::pair<std::string, int>> SplitName(absl::string_view path) {
  constexpr size_t kTail = 20;  // 00002-of-00003.gguf
  if (path.size() <= kTail || !absl::EndsWith(path, ".gguf")) return std::nullopt;
  const absl::string_view tail = path.substr(path.size() - kTail);
  int number = 0, files = 0;
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" ||
      !absl::SimpleAtoi(tail.substr(1, 5), &number) ||
      !absl::SimpleAtoi(tail.substr(10, 5), &files) || files < 1 || files > kMaxFiles) {
    return std::nullopt;
  }
  return std::pair(std::string(path.substr(0, path.size() - kTail + 1)), files);
}

GgufInfo Describe(const Values& values) {
  GgufInfo info;
  info.architecture = values.Text("general.architecture");
  info.name = values.Text("general.name");
  const auto number = [&](const char* key) { return values.Number(info.architecture + "." + key); };
  info.layers = number("block_count");
  info.hidden = number("embedding_length");
  info.context = number("context_length");
  info.experts = number("expert_count");
  info.experts_used = number("expert_used_count");
  info.expert_width = number("expert_feed_forward_length");
  if (info.expert_width == 0) info.expert_width = number("feed_forward_length");
  info.heads = number("attention.head_count");
  info.kv_heads = number("attention.head_count_kv");
  info.key_length = number("attention.key_length");
  info.value_length = number("attention.value_length");
  info.kv_rank = number("attention.kv_lora_rank");
  return info;
}

}  // namespace

bool GgufInfo::IsExpert(const GgufTensor& tensor) {
  return absl::StrContains(tensor.name, "_exps.");
}

absl::StatusOr<GgufInfo> ReadGguf(const std::string& path, Env* env) try {
  std::vector<std::string> paths = {path};
  if (const auto split = SplitName(path)) {
    paths.clear();
    for (int n = 1; n <= split->second; ++n) {
      paths.push_back(fmt::format("{}{:05}-of-{:05}.gguf", split->first, n, split->second));
    }
  }
  Values values;
  std::vector<GgufTensor> tensors;
  for (const std::string& one : paths) MOERT_RETURN_IF_ERROR(ReadFile(one, env, &values, &tensors));
  GgufInfo info = Describe(values);
  info.files = static_cast<int>(paths.size());
  info.tensors = std::move(tensors);
  return info;
} catch (...) {
  return ExceptionStatus("reading a GGUF file");
}

}  // namespace moert
