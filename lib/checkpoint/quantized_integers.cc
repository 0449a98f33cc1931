// QuantizedWeights of integer codes: GPTQ, AWQ and compressed-tensors.
#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "checkpoint/quantized_weights.h"

namespace moert {
namespace {

constexpr int64_t kInWord = 8;  // 4-bit codes of an int32
constexpr uint32_t kOnes = 0x11111111;

// Version 1 of GPTQ subtracted one from all zero points of a word together: a zero point of 0
// borrows from the next one, and adding the same word restores them. Symmetric weights have zero
// points of 8; a file that stores 8 under the old label was not written that way.
void UndoLessOne(bool symmetric, std::vector<uint32_t>* words) {
  const auto is_eight = [](uint32_t word) { return word == 8 * kOnes; };
  if (symmetric && std::all_of(words->begin(), words->end(), is_eight)) return;
  for (uint32_t& word : *words) word += kOnes;
}

unsigned Nibble(uint32_t word, int64_t i) { return (word >> (4 * i)) & 15u; }

}  // namespace

absl::StatusOr<const TensorInfo*> QuantizedWeights::OrderTensor(const StoredMatrix& m) const {
  const bool packed = config_.form == StoredWeights::kPackedInt4;
  const std::string name = m.base + (packed ? ".weight_g_idx" : ".g_idx");
  if (checkpoint_->Find(name) == nullptr) return nullptr;
  return Tensor(name, {DType::kI32}, {m.k});
}

// g_idx gives each channel's group. Records have groups in order; with another order, their
// products would need permuted activations.
absl::StatusOr<StoredGroups> QuantizedWeights::ReadOrder(const StoredMatrix& m, ChannelOrder order,
                                                         QuantizedMatrix* q) const {
  StoredGroups groups = GroupsOf(config_.group, m.k);
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, OrderTensor(m));
  if (t == nullptr) return groups;
  MOERT_ASSIGN_OR_RETURN(std::vector<int32_t> indices, Whole<int32_t>(*t));
  bool in_order = true;
  for (int64_t i = 0; i < m.k; ++i) {
    const int32_t group = indices[i];
    if (group < 0 || group >= groups.count) {
      return Error(*t, fmt::format("channel {} is in group {} of {}", i, group, groups.count));
    }
    in_order = in_order && group == (config_.group > 0 ? i / config_.group : 0);
    if (in_order || order == ChannelOrder::kAny) continue;
    return Error(
        *t, fmt::format(
                "channel {} is in group {}: channels were quantized in another order (act-order, "
                "desc_act), which records do not have; moert-run --as and moert-pack quantize "
                "round the experts anew, and widened they are bf16 (--as bf16)",
                i, group));
  }
  if (in_order) return groups;
  groups.order = std::move(indices);
  q->group = 1;
  q->scales.resize(m.rows * m.k);
  return groups;
}

absl::Status QuantizedWeights::CheckOrder(const StoredMatrix& m) const {
  const StoredWeights form = FormOf(m.base);
  if (form != StoredWeights::kGptq && form != StoredWeights::kPackedInt4) return absl::OkStatus();
  QuantizedMatrix none;
  return ReadOrder(m, ChannelOrder::kRecord, &none).status();
}

// A symmetric file may have zero points all the same: all must be the middle value.
absl::Status QuantizedWeights::CheckZeros(const StoredMatrix& m, const TensorInfo& tensor,
                                          QuantizedMatrix* q) const {
  constexpr float kMiddle = 8;
  if (!config_.symmetric) return absl::OkStatus();
  for (size_t i = 0; i < q->offsets.size(); ++i) {
    if (q->offsets[i] == kMiddle) continue;
    return Error(tensor, fmt::format("row {} has a zero point of {}, but quantization_config says "
                                     "that weights are symmetric (zero point 8)",
                                     static_cast<int64_t>(i) / q->groups(), q->offsets[i]));
  }
  q->offsets.clear();
  return absl::OkStatus();
}

absl::StatusOr<Scheme> QuantizedWeights::Int4Scheme(const StoredMatrix& m,
                                                    const TensorInfo& scales) const {
  MOERT_RETURN_IF_ERROR(OrderTensor(m).status());
  if (const int64_t group = config_.RecordGroup(m.k); group > 0) {
    return Scheme::Parse(fmt::format("w4a16_g{}{}{}", group, config_.symmetric ? "" : "_zp",
                                     scales.dtype == DType::kF16 ? "_f16" : ""));
  }
  return Error(scales, fmt::format("{} channels are not whole groups of {}", m.k, config_.group));
}

// GPTQ: codes of eight input channels per word, [k / 8, rows]. AWQ: of eight output channels per
// word, [k, rows / 8]. Both: zeros [groups, rows / 8], scales [groups, rows].
absl::StatusOr<Scheme> QuantizedWeights::GptqScheme(const StoredMatrix& m) const {
  const bool awq = config_.form == StoredWeights::kAwq;
  const int64_t groups = GroupsOf(config_.group, m.k).count;
  if (m.rows % kInWord != 0 || m.k % kInWord != 0) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(m.base + ".qweight"));
    return Error(*t, fmt::format("[{}, {}] weights: legal are multiples of 8", m.rows, m.k));
  }
  const std::vector<int64_t> shape = awq ? std::vector<int64_t>{m.k, m.rows / kInWord}
                                         : std::vector<int64_t>{m.k / kInWord, m.rows};
  MOERT_RETURN_IF_ERROR(Tensor(m.base + ".qweight", {DType::kI32}, shape).status());
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".qzeros", {DType::kI32}, {groups, m.rows / kInWord}).status());
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales,
                         Tensor(m.base + ".scales", {DType::kF16, DType::kBF16}, {groups, m.rows}));
  return Int4Scheme(m, *scales);
}

absl::Status QuantizedWeights::GptqGroups(const StoredMatrix& m, ChannelOrder order,
                                          QuantizedMatrix* q) const {
  const bool awq = config_.form == StoredWeights::kAwq;
  MOERT_ASSIGN_OR_RETURN(const StoredGroups groups, ReadOrder(m, order, q));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* zeros, checkpoint_->Get(m.base + ".qzeros"));
  MOERT_ASSIGN_OR_RETURN(std::vector<uint32_t> words, Whole<uint32_t>(*zeros));
  if (config_.less_one) UndoLessOne(config_.symmetric, &words);
  const std::vector<int64_t> of = groups.Of(*q);
  q->offsets.resize(q->scales.size());
  for (int64_t row = 0; row < m.rows; row += kInWord) {
    for (size_t g = 0; g < of.size(); ++g) {
      const uint32_t word = words[(of[g] * m.rows + row) / kInWord];
      for (int64_t i = 0; i < kInWord; ++i) {
        const int64_t at = row + (awq ? kAwqOrder[i] : i);
        q->offsets[at * of.size() + g] = static_cast<float>(Nibble(word, i));
      }
    }
  }
  MOERT_RETURN_IF_ERROR(CheckZeros(m, *zeros, q));
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".scales"));
  return ReadScales(*scales, /*by_group=*/true, groups, q);
}

// compressed-tensors: codes [rows, k / 8], zeros [rows / 8, groups], scales [rows, groups].
absl::StatusOr<Scheme> QuantizedWeights::PackedScheme(const StoredMatrix& m) const {
  const int64_t groups = GroupsOf(config_.group, m.k).count;
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".weight_packed", {DType::kI32}, {m.rows, CeilDiv<int64_t>(m.k, kInWord)})
          .status());
  if (!config_.symmetric) {
    MOERT_RETURN_IF_ERROR(Tensor(m.base + ".weight_zero_point", {DType::kI32},
                                 {CeilDiv<int64_t>(m.rows, kInWord), groups})
                              .status());
  }
  MOERT_ASSIGN_OR_RETURN(
      const TensorInfo* scales,
      Tensor(m.base + ".weight_scale", {DType::kF16, DType::kBF16}, {m.rows, groups}));
  return Int4Scheme(m, *scales);
}

absl::Status QuantizedWeights::PackedGroups(const StoredMatrix& m, ChannelOrder order,
                                            QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const StoredGroups groups, ReadOrder(m, order, q));
  if (!config_.symmetric) {
    MOERT_ASSIGN_OR_RETURN(const TensorInfo* zeros,
                           checkpoint_->Get(m.base + ".weight_zero_point"));
    MOERT_ASSIGN_OR_RETURN(const std::vector<uint32_t> zero_words, Whole<uint32_t>(*zeros));
    const std::vector<int64_t> of = groups.Of(*q);
    q->offsets.resize(q->scales.size());
    float* offsets = q->offsets.data();
    for (int64_t row = 0; row < m.rows; ++row) {
      const uint32_t* const words = zero_words.data() + row / kInWord * groups.count;
      for (const int64_t g : of) *offsets++ = static_cast<float>(Nibble(words[g], row % kInWord));
    }
  }
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".weight_scale"));
  return ReadScales(*scales, /*by_group=*/false, groups, q);
}

// compressed-tensors: signed bytes [rows, k], scales [rows, 1] or [rows, groups]. Records have
// scales of bf16.
absl::StatusOr<Scheme> QuantizedWeights::Int8Scheme(const StoredMatrix& m) const {
  const int64_t groups = GroupsOf(config_.group, m.k).count;
  MOERT_RETURN_IF_ERROR(Tensor(m.base + ".weight", {DType::kI8}, {m.rows, m.k}).status());
  MOERT_RETURN_IF_ERROR(
      Tensor(m.base + ".weight_scale", {DType::kBF16, DType::kF16, DType::kF32}, {m.rows, groups})
          .status());
  return Scheme::Parse(config_.group > 0     ? "w8a16_g128"
                       : config_.int8_inputs ? "w8a8"
                                             : "w8a16_g-1");
}

absl::Status QuantizedWeights::Int8Groups(const StoredMatrix& m, ChannelOrder,
                                          QuantizedMatrix* q) const {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Get(m.base + ".weight_scale"));
  return ReadScales(*scales, /*by_group=*/false, GroupsOf(config_.group, m.k), q);
}

}  // namespace moert
