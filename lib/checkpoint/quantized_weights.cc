#include "checkpoint/quantized_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "absl/strings/strip.h"
#include "base/checked_math.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"

namespace moert {
std::string WeightBase(const std::string& weight) {
  return std::string(absl::StripSuffix(weight, ".weight"));
}

// The tensor that only a quantized layer has.
static const char* MarkOf(StoredWeights form) {
  switch (form) {
    case StoredWeights::kPlain:
    case StoredWeights::kFp8:
      return nullptr;
    case StoredWeights::kGptq:
    case StoredWeights::kAwq:
      return ".qweight";
    case StoredWeights::kPackedInt4:
    case StoredWeights::kPackedFp4:
      return ".weight_packed";
    case StoredWeights::kInt8:
      return ".weight_scale";
    case StoredWeights::kModeloptFp4:
      return ".weight_scale_2";
    case StoredWeights::kMxfp4:
      return "_blocks";
  }
  return nullptr;
}

StoredWeights QuantizedWeights::FormOf(const std::string& base) const {
  if (config_.form == StoredWeights::kPlain) return config_.form;
  if (const TensorInfo* w = checkpoint_->Find(base + ".weight");
      w != nullptr && w->dtype == DType::kF8E4M3) {
    return StoredWeights::kFp8;
  }
  const char* const mark = MarkOf(config_.form);
  const bool marked = mark != nullptr && checkpoint_->Find(base + mark) != nullptr;
  return marked ? config_.form : StoredWeights::kPlain;
}

std::vector<std::string> QuantizedWeights::TensorsOf(const std::string& base) const {
  const auto with = [&](std::initializer_list<const char*> suffixes) {
    std::vector<std::string> names;
    for (const char* suffix : suffixes) names.push_back(base + suffix);
    return names;
  };
  switch (FormOf(base)) {
    case StoredWeights::kPlain:
      return with({".weight"});
    case StoredWeights::kFp8:
      if (checkpoint_->Find(base + ".weight_scale_inv") == nullptr) {
        return with({".weight", ".weight_scale"});
      }
      return with({".weight", ".weight_scale_inv"});
    case StoredWeights::kGptq:
    case StoredWeights::kAwq:
      return with({".qweight", ".qzeros", ".scales", ".g_idx"});
    case StoredWeights::kPackedInt4:
      if (config_.symmetric) return with({".weight_packed", ".weight_scale", ".weight_g_idx"});
      return with({".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx"});
    case StoredWeights::kInt8:
      return with({".weight", ".weight_scale"});
    case StoredWeights::kPackedFp4:
      return with({".weight_packed", ".weight_scale", ".weight_global_scale"});
    case StoredWeights::kModeloptFp4:
      return with({".weight", ".weight_scale", ".weight_scale_2"});
    case StoredWeights::kMxfp4:
      return with({"_blocks", "_scales"});
  }
  return {};
}

absl::Status QuantizedWeights::Error(const TensorInfo& tensor, const std::string& what) const {
  return absl::InvalidArgumentError(fmt::format("{}: tensor \"{}\": {}",
                                                checkpoint_->file(tensor.file).path(),
                                                Printable(tensor.name), what));
}

absl::StatusOr<const TensorInfo*> QuantizedWeights::Tensor(
    const std::string& name, std::initializer_list<DType> types,
    const std::vector<int64_t>& shape) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  if (std::find(types.begin(), types.end(), t->dtype) != types.end() && t->shape == shape) return t;
  std::string legal;
  for (const DType type : types) {
    legal += fmt::format("{}{}", legal.empty() ? "" : " or ", DTypeName(type));
  }
  return Error(*t, fmt::format("it is {} {}; {} weights take {} {}", DTypeName(t->dtype),
                               ShapeToString(t->shape), StoredWeightsName(config_.form), legal,
                               ShapeToString(shape)));
}

// Stored [groups, rows] (by_group) or [rows, groups].
absl::Status QuantizedWeights::ReadScales(const TensorInfo& tensor, bool by_group,
                                          const StoredGroups& groups, QuantizedMatrix* q) const {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(tensor, 0, absl::MakeSpan(values)));
  for (int64_t r = 0; r < q->rows; ++r) {
    for (int64_t g = 0; g < q->groups(); ++g) {
      const int64_t of = groups.Of(*q, g);
      const int64_t at = by_group ? of * q->rows + r : r * groups.count + of;
      const float scale = values[static_cast<size_t>(at)];
      if (!std::isfinite(scale)) return Error(tensor, "a scale is not finite");
      q->scales[static_cast<size_t>(r * q->groups() + g)] = scale;
    }
  }
  return absl::OkStatus();
}

StoredGroups QuantizedWeights::GroupsOf(int64_t channels, int64_t k) {
  StoredGroups groups;
  groups.channels = channels;
  if (channels > 0) groups.count = CeilDiv(k, channels);
  return groups;
}

absl::StatusOr<Scheme> QuantizedWeights::SchemeOf(const StoredMatrix& m, StoredWeights form) const {
  switch (form) {
    case StoredWeights::kPlain:
      return Scheme{};
    case StoredWeights::kFp8:
      return Fp8Scheme(m);
    case StoredWeights::kGptq:
    case StoredWeights::kAwq:
      return GptqScheme(m);
    case StoredWeights::kPackedInt4:
      return PackedScheme(m);
    case StoredWeights::kInt8:
      return Int8Scheme(m);
    case StoredWeights::kPackedFp4:
    case StoredWeights::kModeloptFp4:
      return Nvfp4Scheme(m);
    case StoredWeights::kMxfp4:
      return Mxfp4Scheme(m);
  }
  return absl::InternalError("an unknown form of stored weights");
}

absl::StatusOr<QuantizedMatrix> QuantizedWeights::Read(const StoredMatrix& m,
                                                       ChannelOrder order) const {
  const StoredWeights form = FormOf(m.base);
  MOERT_ASSIGN_OR_RETURN(const Scheme scheme, SchemeOf(m, form));
  try {
    QuantizedMatrix q;
    q.rows = m.rows;
    q.k = m.k;
    q.group = scheme.group > 0 ? std::min<int64_t>(scheme.group, m.k) : m.k;
    q.codes.resize(static_cast<size_t>(m.rows * m.k));
    q.scales.resize(static_cast<size_t>(m.rows * q.groups()));
    absl::Status status;
    switch (form) {
      case StoredWeights::kFp8:
        status = ReadFp8(m, &q);
        break;
      case StoredWeights::kGptq:
      case StoredWeights::kAwq:
        status = ReadGptq(m, order, &q);
        break;
      case StoredWeights::kPackedInt4:
        status = ReadPacked(m, order, &q);
        break;
      case StoredWeights::kInt8:
        status = ReadInt8(m, &q);
        break;
      case StoredWeights::kPackedFp4:
      case StoredWeights::kModeloptFp4:
        status = ReadNvfp4(m, &q);
        break;
      case StoredWeights::kMxfp4:
        status = ReadMxfp4(m, &q);
        break;
      case StoredWeights::kPlain:
        status = absl::InternalError("plain weights have no codes");
        break;
    }
    if (!status.ok()) return status;
    return q;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        fmt::format("{}: out of memory for {}", checkpoint_->path(), Printable(m.base)));
  }
}

}  // namespace moert
