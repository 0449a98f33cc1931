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

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float f) { return std::isfinite(f); });
}

}  // namespace

std::string WeightBase(const std::string& weight) {
  return std::string(absl::StripSuffix(weight, ".weight"));
}

/// How one of StoredWeights is stored and read.
struct QuantizedWeights::Form {
  const char* mark;              // the tensor that only such a layer has
  absl::string_view tensors[4];  // all of them, by their suffixes, that of codes first
  CodeForm codes;
  absl::StatusOr<Scheme> (QuantizedWeights::*scheme)(const StoredMatrix& m) const;
  absl::Status (QuantizedWeights::*groups)(const StoredMatrix& m, ChannelOrder order,
                                           QuantizedMatrix* q) const;
};

const QuantizedWeights::Form& QuantizedWeights::Of(StoredWeights form) {
  using Q = QuantizedWeights;
  static const Form kForms[] = {
      // In the order of StoredWeights.
      {nullptr, {".weight"}, CodeForm::kBytes, &Q::PlainScheme, &Q::PlainGroups},
      {nullptr, {".weight", kInverseScale}, CodeForm::kBytes, &Q::Fp8Scheme, &Q::Fp8Groups},
      {".qweight",
       {".qweight", ".qzeros", ".scales", ".g_idx"},
       CodeForm::kChannelWords,
       &Q::GptqScheme,
       &Q::GptqGroups},
      {".qweight",
       {".qweight", ".qzeros", ".scales", ".g_idx"},
       CodeForm::kRowWords,
       &Q::GptqScheme,
       &Q::GptqGroups},
      {".weight_packed",
       {".weight_packed", ".weight_scale", kZeroPoint, ".weight_g_idx"},
       CodeForm::kNibbles,
       &Q::PackedScheme,
       &Q::PackedGroups},
      {".weight_scale",
       {".weight", ".weight_scale"},
       CodeForm::kSignedBytes,
       &Q::Int8Scheme,
       &Q::Int8Groups},
      {".weight_packed",
       {".weight_packed", ".weight_scale", ".weight_global_scale"},
       CodeForm::kNibbles,
       &Q::Nvfp4Scheme,
       &Q::Nvfp4Groups},
      {".weight_scale_2",
       {".weight", ".weight_scale", ".weight_scale_2"},
       CodeForm::kNibbles,
       &Q::Nvfp4Scheme,
       &Q::Nvfp4Groups},
      {"_blocks", {"_blocks", "_scales"}, CodeForm::kNibbles, &Q::Mxfp4Scheme, &Q::Mxfp4Groups},
      {".scale",
       {".weight", ".scale"},
       CodeForm::kNibbles,
       &Q::Mxfp4RowsScheme,
       &Q::Mxfp4RowsGroups},
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

std::vector<int64_t> StoredGroups::Of(const QuantizedMatrix& q) const {
  std::vector<int64_t> of(order.begin(), order.end());
  for (int64_t g = 0; order.empty() && g < q.groups(); ++g) {
    of.push_back(channels > 0 ? g * q.group / channels : 0);
  }
  return of;
}

// Stored [groups, rows] (by_group) or [rows, groups].
absl::Status QuantizedWeights::ReadScales(const TensorInfo& tensor, bool by_group,
                                          const StoredGroups& groups, QuantizedMatrix* q) const {
  const std::vector<int64_t> of = groups.Of(*q);
  const bool as_stored = !by_group && groups.order.empty() && groups.count == q->groups();
  std::vector<float> values(as_stored ? 0 : tensor.elements());
  std::vector<float>& read = as_stored ? q->scales : values;
  MOERT_RETURN_IF_ERROR(checkpoint_->ReadAsF32(tensor, 0, absl::MakeSpan(read)));
  const int64_t row_step = by_group ? 1 : groups.count, group_step = by_group ? q->rows : 1;
  float* scales = q->scales.data();
  for (int64_t r = 0; r < q->rows && !as_stored; ++r) {
    for (const int64_t group : of) {
      *scales++ = values[static_cast<size_t>(group * group_step + r * row_step)];
    }
  }
  if (AllFinite(q->scales)) return absl::OkStatus();
  return Error(tensor, "a scale is not finite");
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

absl::Status QuantizedWeights::OutOfMemory(const StoredMatrix& m) const {
  return ResourceExhausted("{}: out of memory for {}", checkpoint_->path(), Printable(m.base));
}

absl::StatusOr<QuantizedMatrix> QuantizedWeights::ReadGroups(const StoredMatrix& m,
                                                             ChannelOrder order) const {
  const Form& form = Of(FormOf(m.base));
  MOERT_ASSIGN_OR_RETURN(const Scheme scheme, (this->*form.scheme)(m));
  try {
    QuantizedMatrix q;
    q.rows = m.rows;
    q.k = m.k;
    q.group = scheme.group > 0 ? std::min<int64_t>(scheme.group, m.k) : m.k;
    q.scales.resize(m.rows * q.groups());
    MOERT_RETURN_IF_ERROR((this->*form.groups)(m, order, &q));
    return q;
  } catch (const std::bad_alloc&) {
    return OutOfMemory(m);
  }
}

absl::Status QuantizedWeights::ReadCodes(const StoredMatrix& m, TakeTile take,
                                         const MatrixPart& part) const {
  const Form& form = Of(FormOf(m.base));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* tensor,
                         checkpoint_->Get(absl::StrCat(m.base, form.tensors[0])));
  StoredCodes codes = {tensor, form.codes, m.rows, m.k};
  int64_t lines = m.rows;
  if (form.codes == CodeForm::kChannelWords) lines = m.k / 8;
  if (form.codes == CodeForm::kRowWords) lines = m.k;
  if (m.experts > 0) {
    lines = m.experts * m.stored_rows;
    codes.first_line = m.expert * m.stored_rows + m.first_row;
    codes.line_step = m.row_step;
  }
  codes.line_bytes = tensor->bytes / lines;
  try {
    return ReadCodeTiles(*checkpoint_, codes, take, part);
  } catch (const std::bad_alloc&) {
    return OutOfMemory(m);
  }
}

absl::StatusOr<QuantizedMatrix> QuantizedWeights::Read(const StoredMatrix& m,
                                                       ChannelOrder order) const try {
  MOERT_ASSIGN_OR_RETURN(QuantizedMatrix q, ReadGroups(m, order));
  q.codes.resize(m.rows * m.k);
  const auto copy = [&](int64_t row, int64_t k, const CodeTile& codes) {
    for (int64_t r = 0; r < std::min(kRowTile, m.rows - row); ++r) {
      std::copy_n(codes[r], std::min(kKTile, m.k - k), q.codes.data() + (row + r) * m.k + k);
    }
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(ReadCodes(m, copy));
  return q;
} catch (const std::bad_alloc&) {
  return OutOfMemory(m);
}

}  // namespace moert
