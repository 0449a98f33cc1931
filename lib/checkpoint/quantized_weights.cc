#include "checkpoint/quantized_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"

namespace moert {
namespace {

constexpr absl::string_view kZeroPoint = ".weight_zero_point";    // not of symmetric weights
constexpr absl::string_view kInverseScale = ".weight_scale_inv";  // or one of the others
constexpr absl::string_view kOtherScales[] = {".weight_scale", ".scale"};

}  // namespace

std::string WeightBase(const std::string& weight) {
  return std::string(absl::StripSuffix(weight, ".weight"));
}

/// How one of StoredWeights is stored and read.
struct QuantizedWeights::Form {
  const char* mark;              // the tensor that only such a layer has
  absl::string_view tensors[4];  // all of them, by their suffixes
  absl::StatusOr<Scheme> (QuantizedWeights::*scheme)(const StoredMatrix& m) const;
  absl::Status (QuantizedWeights::*read)(const StoredMatrix& m, ChannelOrder order,
                                         QuantizedMatrix* q) const;
};

const QuantizedWeights::Form& QuantizedWeights::Of(StoredWeights form) {
  using Q = QuantizedWeights;
  static const Form kForms[] = {
      // In the order of StoredWeights.
      {nullptr, {".weight"}, &Q::PlainScheme, &Q::ReadPlain},
      {nullptr, {".weight", kInverseScale}, &Q::Fp8Scheme, &Q::ReadFp8},
      {".qweight", {".qweight", ".qzeros", ".scales", ".g_idx"}, &Q::GptqScheme, &Q::ReadGptq},
      {".qweight", {".qweight", ".qzeros", ".scales", ".g_idx"}, &Q::GptqScheme, &Q::ReadGptq},
      {".weight_packed",
       {".weight_packed", ".weight_scale", kZeroPoint, ".weight_g_idx"},
       &Q::PackedScheme,
       &Q::ReadPacked},
      {".weight_scale", {".weight", ".weight_scale"}, &Q::Int8Scheme, &Q::ReadInt8},
      {".weight_packed",
       {".weight_packed", ".weight_scale", ".weight_global_scale"},
       &Q::Nvfp4Scheme,
       &Q::ReadNvfp4},
      {".weight_scale_2",
       {".weight", ".weight_scale", ".weight_scale_2"},
       &Q::Nvfp4Scheme,
       &Q::ReadNvfp4},
      {"_blocks", {"_blocks", "_scales"}, &Q::Mxfp4Scheme, &Q::ReadMxfp4},
      {".scale", {".weight", ".scale"}, &Q::Mxfp4RowsScheme, &Q::ReadMxfp4Rows},
  };
  return kForms[static_cast<size_t>(form)];
}

StoredWeights QuantizedWeights::FormOf(const std::string& base) const {
  if (config_.form == StoredWeights::kPlain) return config_.form;
  if (const TensorInfo* w = checkpoint_->Find(base + ".weight");
      w != nullptr && w->dtype == DType::kF8E4M3) {
    return StoredWeights::kFp8;
  }
  const char* const mark = Of(config_.form).mark;
  const bool marked = mark != nullptr && checkpoint_->Find(base + mark) != nullptr;
  return marked ? config_.form : StoredWeights::kPlain;
}

std::vector<std::string> QuantizedWeights::TensorsOf(const std::string& base) const {
  std::vector<std::string> names;
  for (const absl::string_view suffix : Of(FormOf(base)).tensors) {
    if (suffix.empty() || (suffix == kZeroPoint && config_.symmetric)) continue;
    std::string name = absl::StrCat(base, suffix);
    for (const absl::string_view other : kOtherScales) {
      if (suffix != kInverseScale || checkpoint_->Find(name) != nullptr) break;
      name = absl::StrCat(base, other);
    }
    names.push_back(std::move(name));
  }
  return names;
}

absl::Status QuantizedWeights::Error(const TensorInfo& tensor, const std::string& what) const {
  return InvalidArgument("{}: tensor \"{}\": {}", checkpoint_->file(tensor.file).path(),
                         Printable(tensor.name), what);
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
  std::vector<float> values(tensor.elements());
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

absl::StatusOr<Scheme> QuantizedWeights::SchemeOf(const StoredMatrix& m) const {
  return (this->*Of(FormOf(m.base)).scheme)(m);
}

absl::StatusOr<QuantizedMatrix> QuantizedWeights::Read(const StoredMatrix& m,
                                                       ChannelOrder order) const {
  const Form& form = Of(FormOf(m.base));
  MOERT_ASSIGN_OR_RETURN(const Scheme scheme, (this->*form.scheme)(m));
  try {
    QuantizedMatrix q;
    q.rows = m.rows;
    q.k = m.k;
    q.group = scheme.group > 0 ? std::min<int64_t>(scheme.group, m.k) : m.k;
    q.codes.resize(m.rows * m.k);
    q.scales.resize(m.rows * q.groups());
    MOERT_RETURN_IF_ERROR((this->*form.read)(m, order, &q));
    return q;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("{}: out of memory for {}", checkpoint_->path(), Printable(m.base));
  }
}

}  // namespace moert
