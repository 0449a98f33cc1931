// CheckpointExperts: finds the tensors that hold a model's experts, and checks them against
// config.json.

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "base/errors.h"
#include "base/fmt_absl.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"

namespace moert {
namespace {

constexpr char kRouted[] = "routed experts";

// Whether a file has tensors under these names.
bool Fits(const Checkpoint& checkpoint, const MoeTensorNames& names, const MoeLayerSpec& layer) {
  if (!names.router.empty() && !layer.routing.external()) {
    return checkpoint.Find(names.Router(layer.model_layer)) != nullptr;
  }
  const std::string prefix = names.ExpertsPrefix(layer.model_layer);
  return std::any_of(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                     [&](const TensorInfo& t) { return absl::StartsWith(t.name, prefix); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointExperts>> CheckpointExperts::Create(
    const Checkpoint* checkpoint, const HfConfig* config) {
  std::unique_ptr<CheckpointExperts> experts(new CheckpointExperts(checkpoint, config));
  experts->names_ = config->names;
  for (const MoeTensorNames& other : config->other_names) {
    if (Fits(*checkpoint, experts->names_, config->moe.layers.front())) break;
    if (Fits(*checkpoint, other, config->moe.layers.front())) experts->names_ = other;
  }
  for (const MoeLayerSpec& layer : config->moe.layers) {
    MOERT_RETURN_IF_ERROR(experts->CheckLayer(layer));
  }
  MOERT_RETURN_IF_ERROR(experts->CheckAllRead());
  return experts;
}

absl::Status CheckpointExperts::Check(const std::string& name, absl::Span<const int64_t> shape,
                                      const char* part) {
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* t, checkpoint_->Get(name));
  claims_.Claim(t, part);
  MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Fp8Scales(*t));
  claims_.Claim(scales, part);
  const std::string& file = checkpoint_->file(t->file).path();
  if (absl::MakeConstSpan(t->shape) != shape) {
    return InvalidArgument("{}: tensor \"{}\": its shape is {}, config.json implies {}", file, name,
                           ShapeToString(t->shape), ShapeToString(shape));
  }
  return checkpoint_->CheckWeightType(*t);
}

absl::StatusOr<Scheme> CheckpointExperts::CheckQuantized(const StoredMatrix& m, const char* part) {
  for (const std::string& name : quantized_.TensorsOf(m.base)) claims_.Claim(name, part);
  return quantized_.SchemeOf(m);
}

// Looks for fused tensors, as transformers and MLX write them, in a layer without tensors per
// expert.
absl::StatusOr<ExpertTensors> CheckpointExperts::FindFused(const MoeLayerSpec& l) const {
  const std::string prefix = names_.ExpertsPrefix(l.model_layer);  // "...experts."
  const std::string mlx = absl::StrReplaceAll(prefix, {{".experts.", ".switch_mlp."}});
  static constexpr const char* kParts[] = {"gate_up_proj", "gate_proj", "up_proj", "down_proj"};
  const TensorInfo* at[4] = {};
  std::string wanted[4];
  for (size_t i = 0; i < 4; ++i) {
    const std::string& own = names_.stacked[i];
    wanted[i] = own.empty() ? prefix + kParts[i] : MoeTensorNames::InLayer(own, l.model_layer);
    for (const std::string& base : {wanted[i], mlx + kParts[i]}) {
      for (const char* suffix : {"", ".weight"}) {
        if (at[i] == nullptr) at[i] = checkpoint_->Find(base + suffix);
      }
    }
  }
  ExpertTensors found;
  found.fused = true;
  found.gate_up = l.activation.gated ? at[0] : nullptr;
  found.gate = found.gate_up == nullptr && l.activation.gated ? at[1] : nullptr;
  found.up = found.gate_up == nullptr ? at[2] : nullptr;
  found.down = at[3];
  const bool gate = found.gate != nullptr || !l.activation.gated;
  if (found.down != nullptr && (found.gate_up != nullptr || (gate && found.up != nullptr))) {
    MOERT_RETURN_IF_ERROR(CheckFused(l, &found));
    return found;
  }
  return NotFound(
      "{}: tensor \"{}\" is missing, and so is the one of all experts: {} or {} with {}, and {}",
      checkpoint_->path(),
      names_.Expert(l.model_layer, 0, l.activation.gated ? Projection::kGate : Projection::kUp),
      wanted[0], wanted[1], wanted[2], wanted[3]);
}

absl::Status CheckpointExperts::CheckFused(const MoeLayerSpec& l, ExpertTensors* found) const {
  const int64_t e = l.num_experts, h = l.hidden, w = l.intermediate;
  // [experts, rows, columns], or the experts' rows concatenated.
  const auto is = [&](const TensorInfo* t, int64_t rows, int64_t columns, bool turned) {
    if (t == nullptr) return true;
    if (turned) std::swap(rows, columns);
    return t->shape == std::vector<int64_t>{e, rows, columns} ||
           t->shape == std::vector<int64_t>{e * rows, columns};
  };
  const auto all = [&](bool turned) {
    return is(found->gate_up, 2 * w, h, turned) && is(found->gate, w, h, turned) &&
           is(found->up, w, h, turned) && is(found->down, h, w, turned != names_.down_turned);
  };
  // Never both: one of the three pairs of sizes differs from its reverse, unless h == w and gate
  // and up are separate. Such tensors are taken to be in product order.
  const bool straight = all(false);
  found->transposed = !straight && all(true);
  found->down_transposed = found->transposed != names_.down_turned;
  for (const TensorInfo* t : {found->gate_up, found->gate, found->up, found->down}) {
    if (t == nullptr) continue;
    if (!straight && !found->transposed) {
      const std::string& file = checkpoint_->file(t->file).path();
      return InvalidArgument(
          "{}: tensor \"{}\": its shape is {}; config.json implies {} experts, hidden size {} and "
          "expert width {}: gate and up [{}, {}, {}] (together [{}, {}, {}]) with down [{}, {}, "
          "{}], or all with the last two sizes swapped",
          file, Printable(t->name), ShapeToString(t->shape), e, h, w, e, w, h, e, 2 * w, h, e, h,
          w);
    }
    MOERT_RETURN_IF_ERROR(checkpoint_->CheckWeightType(*t));
  }
  return absl::OkStatus();
}

// Single experts may have been left unquantized: those for which calibration had no tokens.
absl::StatusOr<ExpertFormat> CheckpointExperts::CheckExpert(const MoeLayerSpec& l, int expert,
                                                            bool blocks) {
  ExpertFormat format;
  Scheme* const schemes[] = {&format.gate, &format.up, &format.down};
  for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
    if (p == Projection::kGate && !l.activation.gated) continue;
    const StoredMatrix m = Stored(l, expert, p, blocks);
    if (!quantized_.Has(m.base)) {
      MOERT_RETURN_IF_ERROR(Check(names_.Expert(l.model_layer, expert, p), {m.rows, m.k}, kRouted));
      continue;
    }
    MOERT_ASSIGN_OR_RETURN(*schemes[static_cast<int>(p)], CheckQuantized(m, kRouted));
  }
  if (!l.activation.gated) format.gate = format.up;
  return format;
}

absl::Status CheckpointExperts::CheckRecords() const {
  for (size_t i = 0; i < stored_.size(); ++i) {
    if (tensors_[i].fused) continue;
    for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      const StoredMatrix m = Stored(config_->moe.layers[i], 0, p, /*blocks=*/false);
      MOERT_RETURN_IF_ERROR(quantized_.CheckOrder(m));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckExperts(const MoeLayerSpec& l) {
  const int n = l.model_layer;
  tensors_.emplace_back();
  stored_.push_back({ExpertFormat::Uniform(Scheme{})});
  const std::string prefix = names_.ExpertsPrefix(n);
  if (config_->quantization.form == StoredWeights::kMxfp4) {
    tensors_.back().blocks = quantized_.Has(prefix + "gate_up_proj");
    tensors_.back().fused = tensors_.back().blocks;
  }
  const bool blocks = tensors_.back().blocks;
  const std::string first =
      names_.Expert(n, 0, l.activation.gated ? Projection::kGate : Projection::kUp);
  if (!blocks && !quantized_.Has(WeightBase(first)) && checkpoint_->Find(first) == nullptr) {
    MOERT_ASSIGN_OR_RETURN(tensors_.back(), FindFused(l));
    const ExpertTensors& found = tensors_.back();
    for (const TensorInfo* t : {found.gate_up, found.gate, found.up, found.down}) {
      if (t == nullptr) continue;
      claims_.Claim(t, kRouted);
      MOERT_ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint_->Fp8Scales(*t));
      claims_.Claim(scales, kRouted);
    }
    return absl::OkStatus();
  }
  std::vector<ExpertFormat> formats;
  for (int e = 0; e < (blocks ? 1 : l.num_experts); ++e) {  // blocks: all are in the same tensors
    MOERT_ASSIGN_OR_RETURN(ExpertFormat format, CheckExpert(l, e, blocks));
    formats.push_back(format);
  }
  const auto other = std::find_if(formats.begin(), formats.end(),
                                  [&](const ExpertFormat& f) { return !(f == formats[0]); });
  if (other == formats.end()) formats.resize(1);
  stored_.back() = std::move(formats);
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckBiases(const MoeLayerSpec& l) {
  const int n = l.model_layer;
  const std::string prefix = names_.ExpertsPrefix(n);
  if (tensors_.back().fused) {
    MOERT_RETURN_IF_ERROR(
        Check(prefix + "gate_up_proj_bias", {l.num_experts, 2 * l.intermediate}, kRouted));
    return Check(prefix + "down_proj_bias", {l.num_experts, l.hidden}, kRouted);
  }
  for (int e = 0; e < l.num_experts; ++e) {
    for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
      if (p == Projection::kGate && !l.activation.gated) continue;
      const int64_t rows = p == Projection::kDown ? l.hidden : l.intermediate;
      MOERT_RETURN_IF_ERROR(Check(WeightBase(names_.Expert(n, e, p)) + ".bias", {rows}, kRouted));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointExperts::CheckShared(const MoeLayerSpec& l) {
  static constexpr char kShared[] = "shared experts";
  const int64_t w = l.shared_intermediate;
  const bool joined = w > 0 && !names_.shared_gate_up.empty();
  if (joined) {
    const std::string name = MoeTensorNames::InLayer(names_.shared_gate_up, l.model_layer);
    const StoredMatrix m = {WeightBase(name), 2 * w, l.hidden};
    MOERT_RETURN_IF_ERROR(quantized_.Has(m.base) ? CheckQuantized(m, kShared).status()
                                                 : Check(name, {m.rows, m.k}, kShared));
  }
  for (const Projection p : {Projection::kGate, Projection::kUp, Projection::kDown}) {
    if (joined && p != Projection::kDown) continue;
    if (w == 0 || (p == Projection::kGate && !l.activation.gated)) continue;
    const bool down = p == Projection::kDown;
    const std::string name = names_.SharedExpert(l.model_layer, p);
    const StoredMatrix m = {WeightBase(name), down ? l.hidden : w, down ? w : l.hidden};
    MOERT_RETURN_IF_ERROR(quantized_.Has(m.base) ? CheckQuantized(m, kShared).status()
                                                 : Check(name, {m.rows, m.k}, kShared));
  }
  if (!l.shared_gate) return absl::OkStatus();
  return Check(names_.SharedGate(l.model_layer), {1, l.hidden}, kShared);
}

absl::Status CheckpointExperts::CheckLayer(const MoeLayerSpec& l) {
  static constexpr char kRouters[] = "routers";
  const int n = l.model_layer;
  MOERT_RETURN_IF_ERROR(CheckExperts(l));
  if (l.expert_bias) MOERT_RETURN_IF_ERROR(CheckBiases(l));
  if (!l.routing.external()) {
    MOERT_RETURN_IF_ERROR(Check(names_.Router(n), {l.num_experts, l.hidden}, kRouters));
  }
  if (l.routing.logit_bias) {
    MOERT_RETURN_IF_ERROR(Check(names_.RouterBias(n), {l.num_experts}, kRouters));
  }
  if (l.routing.expert_scales) {
    MOERT_RETURN_IF_ERROR(Check(names_.ExpertScales(n), {l.num_experts}, kRouters));
  }
  if (l.routing.selection_bias) {
    MOERT_RETURN_IF_ERROR(Check(names_.SelectionBias(n), BiasShape(l), kRouters));
  }
  if (l.routing.hash_vocab > 0) {
    MOERT_ASSIGN_OR_RETURN(
        const TensorInfo* table,
        checkpoint_->GetIntegers(names_.HashExperts(n), {l.routing.hash_vocab, l.routing.top_k}));
    claims_.Claim(table, kRouters);
  }
  return CheckShared(l);
}

absl::Status CheckpointExperts::CheckAllRead() const {
  // Each block's prefix: "model.layers.3.mlp."
  std::set<std::string, std::less<>> blocks;
  for (const MoeLayerSpec& l : config_->moe.layers) {
    for (const std::string& block : names_.blocks) {
      blocks.insert(MoeTensorNames::InLayer(block, l.model_layer));
    }
    if (!names_.blocks.empty()) continue;
    std::string prefix = names_.ExpertsPrefix(l.model_layer);
    prefix.resize(prefix.rfind('.', prefix.size() - 2) + 1);
    blocks.insert(std::move(prefix));
  }
  for (const TensorInfo& t : checkpoint_->tensors()) {
    if (claims_.PartOf(t) != nullptr || WhyWithoutEffect(t.name) != nullptr) continue;
    const auto next = blocks.upper_bound(t.name);
    if (next == blocks.begin() || !absl::StartsWith(t.name, *std::prev(next))) continue;
    if (HostTensor(names_, config_->moe, t.name) != nullptr) continue;
    return UnreadTensor(*checkpoint_, t);
  }
  return absl::OkStatus();
}

}  // namespace moert
