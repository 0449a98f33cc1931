#include "format/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "moert/scheme.h"

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
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> tensors) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter);
  // Entries are written in data order; a sorted JSON object would lose it for human readers.
  std::string header = "{";
  int64_t end = 0;
  for (const TensorSpec& t : tensors) {
    Checked<int64_t> bytes(DTypeBytes(t.dtype));
    for (const int64_t d : t.shape) bytes.Mul(d);
    const auto next = bytes.value() ? CheckedAdd<int64_t>(end, *bytes.value()) : std::nullopt;
    if (!next || *next < end) {
      return absl::InvalidArgumentError(
          fmt::format("{}: tensor \"{}\": its size overflows", path, t.name));
    }
    header += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.size() == 1 ? "" : ",", nlohmann::json(t.name).dump(),
                          DTypeCode(t.dtype), fmt::join(t.shape, ","), end, *next);
    writer->offsets_.push_back(end);
    end = *next;
  }
  writer->offsets_.push_back(end);
  header += "}";
  const int64_t data =
      RoundUp<int64_t>(kPrefixBytes + static_cast<int64_t>(header.size()), kRecordAlignment);
  header.resize(static_cast<size_t>(data - kPrefixBytes), ' ');
  for (int64_t& offset : writer->offsets_) offset += data;

  MOERT_ASSIGN_OR_RETURN(writer->file_, FileWriter::Create(path));
  const uint64_t length = header.size();
  MOERT_RETURN_IF_ERROR(writer->file_->Append(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&length), sizeof(length))));
  MOERT_RETURN_IF_ERROR(writer->file_->Append(header));
  writer->tensors_ = std::move(tensors);
  return writer;
}

absl::Status SafetensorsWriter::Append(absl::Span<const std::byte> data) {
  if (next_ == tensors_.size()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: all tensors are already written", file_->path()));
  }
  const int64_t want = offsets_[next_ + 1] - offsets_[next_];
  const int64_t size = static_cast<int64_t>(data.size());
  if (size > want) {
    return absl::InvalidArgumentError(fmt::format("{}: tensor \"{}\" has {} bytes, got {}",
                                                  file_->path(), tensors_[next_].name, want, size));
  }
  MOERT_RETURN_IF_ERROR(file_->Append(data));
  static constexpr std::byte kZeros[4096] = {};
  for (int64_t left = want - size; left > 0;) {
    const int64_t n = std::min<int64_t>(left, sizeof(kZeros));
    MOERT_RETURN_IF_ERROR(file_->Append(absl::MakeConstSpan(kZeros, static_cast<size_t>(n))));
    left -= n;
  }
  ++next_;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (next_ != tensors_.size()) {
    return absl::FailedPreconditionError(
        fmt::format("{}: tensor \"{}\" was not written", file_->path(), tensors_[next_].name));
  }
  return file_->Close();
}

}  // namespace moert
