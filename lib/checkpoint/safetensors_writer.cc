#include "checkpoint/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked_math.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/json_writer.h"
#include "base/status_macros.h"
#include "moert/scheme.h"
#include "moert/tools/env.h"

namespace moert {
namespace {

constexpr int64_t kPrefixBytes = 8;

const char* DTypeCode(DType t) {
  switch (t) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kU8:
      return "U8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    default:
      return "";  // nothing else is written
  }
}

std::optional<int64_t> TensorBytes(const TensorSpec& t) {
  Checked<int64_t> bytes(DTypeBytes(t.dtype));
  for (const int64_t d : t.shape) bytes.Mul(d);
  return bytes.value();
}

}  // namespace

absl::StatusOr<std::string> SafetensorsFileStart(const std::vector<TensorSpec>& tensors) {
  // Entries are written in data order for human readers; a sorted JSON object would lose the order.
  std::string header = "{";
  int64_t end = 0;
  for (const TensorSpec& t : tensors) {
    const auto bytes = TensorBytes(t);
    const auto next = bytes ? CheckedAdd<int64_t>(end, *bytes) : std::nullopt;
    if (!next || *next < end) return InvalidArgument("tensor \"{}\": its size overflows", t.name);
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() == 1 ? "" : ",", JsonWriter().String(t.name).Take(),
                          DTypeCode(t.dtype), fmt::join(t.shape, ","), end, *next);
    end = *next;
  }
  header += "}";
  const int64_t data =
      RoundUp<int64_t>(kPrefixBytes + static_cast<int64_t>(header.size()), kRecordAlignment);
  header.resize(data - kPrefixBytes, ' ');
  const uint64_t length = header.size();
  std::string start(kPrefixBytes, '\0');
  std::memcpy(start.data(), &length, sizeof(length));
  return start + header;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Plan(
    const std::string& path, std::vector<TensorSpec> tensors) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  const auto start = SafetensorsFileStart(tensors);
  if (!start.ok()) return InvalidArgument("{}: {}", path, start.status().message());
  writer->start_ = *start;
  int64_t end = static_cast<int64_t>(writer->start_.size());
  for (const TensorSpec& t : tensors) {
    writer->offsets_.push_back(end);
    const auto next = CheckedAdd<int64_t>(end, *TensorBytes(t));
    if (!next) return InvalidArgument("{}: its size overflows", path);
    end = *next;
  }
  writer->offsets_.push_back(end);
  writer->tensors_ = std::move(tensors);
  return writer;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> tensors, int mode) {
  MOERT_ASSIGN_OR_RETURN(auto writer, Plan(path, std::move(tensors)));
  MOERT_ASSIGN_OR_RETURN(writer->file_, FileWriter::Create(path, mode));
  MOERT_RETURN_IF_ERROR(writer->file_->Append(writer->start_));
  return writer;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Resume(
    const std::string& path, std::vector<TensorSpec> tensors, size_t written) {
  MOERT_ASSIGN_OR_RETURN(auto writer, Plan(path, std::move(tensors)));
  if (written > writer->tensors_.size()) {
    return InvalidArgument("{}: has {} tensors, not {}", path, writer->tensors_.size(), written);
  }
  std::string found(writer->start_.size(), '\0');
  MOERT_ASSIGN_OR_RETURN(const auto old, Env::Default()->Open(path, FileAccess::kBuffered));
  const absl::Status read =
      old->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(found.data()), found.size()));
  if (!read.ok() || found != writer->start_) {
    return DataLoss("{}: not the file that was begun here", path);
  }
  MOERT_ASSIGN_OR_RETURN(writer->file_, FileWriter::Resume(path, writer->offsets_[written]));
  writer->next_ = written;
  return writer;
}

absl::Status SafetensorsWriter::Append(absl::Span<const std::byte> data) {
  if (next_ == tensors_.size()) {
    return FailedPrecondition("{}: all tensors are already written", file_->path());
  }
  const int64_t want = offsets_[next_ + 1] - offsets_[next_];
  const int64_t size = static_cast<int64_t>(data.size());
  if (size > want) {
    return InvalidArgument("{}: tensor \"{}\" has {} bytes, got {}", file_->path(),
                           tensors_[next_].name, want, size);
  }
  MOERT_RETURN_IF_ERROR(file_->Append(data));
  static constexpr std::byte kZeros[4096] = {};
  for (int64_t left = want - size; left > 0;) {
    const int64_t n = std::min<int64_t>(left, sizeof(kZeros));
    MOERT_RETURN_IF_ERROR(file_->Append(absl::MakeConstSpan(kZeros, n)));
    left -= n;
  }
  ++next_;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (next_ != tensors_.size()) {
    return FailedPrecondition("{}: tensor \"{}\" was not written", file_->path(),
                              tensors_[next_].name);
  }
  return file_->Close();
}

}  // namespace moert
