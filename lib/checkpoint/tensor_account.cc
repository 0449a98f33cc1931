#include "moert/offline/tensor_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/folder.h"
#include "base/printable.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint_experts.h"
#include "checkpoint/config_account.h"
#include "checkpoint/quantized_weights.h"
#include "checkpoint/tensor_claims.h"

namespace moert {
namespace {

constexpr char kAttention[] = "attention";
constexpr char kNorms[] = "norms";
constexpr char kRouters[] = "routers";
constexpr std::array kDelta = {"in_proj_qkvz", "in_proj_ba", "out_proj"};
constexpr std::array kSeparateDelta = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
                                       "out_proj"};

// Claims the tensors that a decoder reads beside the MoE blocks, as HfConfig describes it.
class DecoderTensors {
 public:
  DecoderTensors(const Checkpoint& checkpoint, const HfConfig& config, TensorClaims* claims)
      : checkpoint_(checkpoint),
        config_(config),
        quantized_(&checkpoint, config.quantization),
        claims_(claims) {}

  void Claim() {
    const std::string &prefix = config_.tensor_prefix, &body = config_.tensor_body;
    static constexpr char kEnds[] = "embedding and head";
    Linear(body + config_.embedding_name, false, kEnds);
    if (!config_.tie_word_embeddings) {
      Linear(prefix + config_.head_name, config_.lm_head_bias, kEnds);
    }
    Norm(body + "norm");
    HyperConnection(body + "hc_head");
    for (int i = 0; i < config_.num_hidden_layers; ++i) {
      const std::string layer = fmt::format("{}layers.{}.", body, i);
      Norm(layer + config_.mixer_norm_name);
      Norm(layer + config_.mlp_norm_name);
      for (const char* half : {"hc_attn", "hc_ffn"}) HyperConnection(layer + half);
      Mixer(layer, i);
      if (config_.side_experts) SideExperts(layer);
      if (config_.MoeLayerIndex(i) >= 0 && !config_.side_experts) continue;
      for (const char* part : {".gate_proj", ".up_proj", ".down_proj"}) {
        Linear(absl::StrCat(layer, config_.dense_block, part), false, "dense feed-forward");
      }
    }
  }

 private:
  void SideExperts(const std::string& layer) {
    for (const char* norm :
         {"pre_feedforward_layernorm", "post_feedforward_layernorm", "post_feedforward_layernorm_1",
          "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"}) {
      Norm(layer + norm);
    }
    claims_->Claim(layer + "layer_scalar", kNorms);
    Linear(layer + "router.proj", false, kRouters);
    claims_->Claim(layer + "router.scale", kRouters);
    claims_->Claim(layer + "router.per_expert_scale", kRouters);
  }
  void Linear(const std::string& name, bool bias, const char* part) {
    for (const std::string& tensor : quantized_.TensorsOf(name)) claims_->Claim(tensor, part);
    if (const TensorInfo* weight = checkpoint_.Find(name + ".weight")) {
      claims_->Claim(checkpoint_.Fp8Scales(*weight).value_or(nullptr), part);
    }
    if (bias) claims_->Claim(name + ".bias", part);
  }
  void Norm(const std::string& name) {
    claims_->Claim(name + ".weight", kNorms);
    if (config_.norm == NormKind::kLayer) claims_->Claim(name + ".bias", kNorms);
  }
  void HyperConnection(const std::string& name) {
    if (config_.hyper.streams == 0) return;
    for (const char* part : {"_fn", "_base", "_scale"}) {
      claims_->Claim(name + part, "hyper-connections");
    }
  }
  void Mixer(const std::string& layer, int index) {
    const MixerConfig& mixer = config_.mixers[index];
    if (mixer.kind == MixerKind::kDeltaNet) return DeltaNet(layer + "linear_attn.");
    if (config_.compressed.q_rank > 0) return Compressed(layer + "attn.", mixer);
    const std::string name = layer + "self_attn.";
    if (config_.indexer.heads > 0 && !mixer.shares_index && !mixer.ignores_index) {
      config_.indexer.block_size > 0 ? BlockIndexer(name) : Indexer(name + "indexer.");
    }
    if (config_.latent.kv_rank > 0) return Latent(name);
    for (const char* part : {"q_proj", "k_proj"}) Linear(name + part, config_.qkv_bias, kAttention);
    if (config_.HasValues(index)) Linear(name + "v_proj", config_.qkv_bias, kAttention);
    Linear(name + "o_proj", config_.attention_output_bias, kAttention);
    const bool rotated = config_.qk_norm == QkNorm::kPerHeadRotated;
    if (config_.qk_norm != QkNorm::kNone && config_.qk_norm != QkNorm::kPerHeadL2) {
      claims_->Claim(name + (rotated ? "query_layernorm.weight" : "q_norm.weight"), kNorms);
      claims_->Claim(name + (rotated ? "key_layernorm.weight" : "k_norm.weight"), kNorms);
    }
    if (config_.HasSinks(index)) claims_->Claim(name + config_.sinks_name, kAttention);
  }
  void Latent(const std::string& name) {
    if (config_.latent.q_rank > 0) {
      Linear(name + "q_a_proj", config_.qkv_bias, kAttention);
      claims_->Claim(name + "q_a_layernorm.weight", kNorms);
      Linear(name + "q_b_proj", false, kAttention);
    } else {
      Linear(name + "q_proj", false, kAttention);
    }
    Linear(name + "kv_a_proj_with_mqa", config_.qkv_bias, kAttention);
    claims_->Claim(name + "kv_a_layernorm.weight", kNorms);
    Linear(name + "kv_b_proj", false, kAttention);
    Linear(name + "o_proj", config_.attention_output_bias, kAttention);
  }
  void Compressed(const std::string& name, const MixerConfig& mixer) {
    for (const char* part : {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"}) {
      Linear(name + part, false, kAttention);
    }
    for (const char* norm : {"q_norm", "kv_norm"}) Norm(name + norm);
    claims_->Claim(name + config_.sinks_name, kAttention);
    if (mixer.kind != MixerKind::kCompressed) return;
    Compressor(name + "compressor.");
    if (mixer.ignores_index) return;
    for (const char* part : {"indexer.wq_b", "indexer.weights_proj"}) {
      Linear(name + part, false, kAttention);
    }
    Compressor(name + "indexer.compressor.");
  }
  void Compressor(const std::string& name) {
    for (const char* part : {"wkv", "wgate"}) Linear(name + part, false, kAttention);
    claims_->Claim(name + "ape", kAttention);
    Norm(name + "norm");
  }
  void Indexer(const std::string& name) {
    for (const char* part : {"wq_b", "wk", "weights_proj"}) Linear(name + part, false, kAttention);
    for (const char* part : {"k_norm.weight", "k_norm.bias"}) claims_->Claim(name + part, kNorms);
  }
  void BlockIndexer(const std::string& name) {
    for (const char* part : {"index_q_proj", "index_k_proj"}) {
      Linear(name + part, false, kAttention);
    }
    for (const char* part : {"index_q_norm", "index_k_norm"}) Norm(name + part);
  }
  void DeltaNet(const std::string& name) {
    const bool separate = config_.delta_net.separate;
    for (const char* part : separate ? absl::MakeConstSpan(kSeparateDelta) : kDelta) {
      Linear(name + part, false, kAttention);
    }
    for (const char* part : {"conv1d.weight", "A_log", "dt_bias", "norm.weight"}) {
      claims_->Claim(name + part, kAttention);
    }
  }

  const Checkpoint& checkpoint_;
  const HfConfig& config_;
  const QuantizedWeights quantized_;
  TensorClaims* const claims_;
};

// Modules of multimodal models that exporters put beside the layers.
constexpr const char* kOtherModules[] = {
    "visual", "vision_tower", "vision_model", "multi_modal_projector", "mm_projector", "mtp"};

// Whether the tensor belongs to the body of a model whose tensor names have no common prefix.
bool IsInBareBody(const HfConfig& config, absl::string_view name) {
  if (!config.tensor_body.empty()) return false;
  const absl::string_view part = name.substr(0, name.find_first_of("._"));
  return part == "layers" || part == "norm" || part == "hc" || part == config.embedding_name;
}

// The reason why an unclaimed tensor is left out; empty: unknown.
std::string WhyLeftOut(const HfConfig& config, absl::string_view name) {
  if (const char* why = WhyWithoutEffect(name)) return why;
  if (config.experts_only) return kOfTheHost;
  absl::string_view rest = name;
  const bool ours = absl::ConsumePrefix(&rest, config.tensor_prefix);
  const bool head = absl::StartsWith(rest, config.head_name + ".");
  if (ours && head && config.tie_word_embeddings) {
    return "tie_word_embeddings: the embedding is the head";
  }
  const bool model = absl::StartsWith(rest, "model.") || IsInBareBody(config, rest);
  if (!ours || !(model || head)) {
    return fmt::format("of another module, {}", Printable(name.substr(0, name.find('.'))));
  }
  if (absl::string_view of_body = name; absl::ConsumePrefix(&of_body, config.tensor_body)) {
    rest = of_body;
  }
  absl::ConsumePrefix(&rest, "model.");
  const absl::string_view module = rest.substr(0, rest.find('.'));
  for (const char* other : kOtherModules) {
    if (module == other) return fmt::format("of another module, {}", other);
  }
  if (!absl::ConsumePrefix(&rest, "layers.")) return "";
  int64_t layer = 0;
  if (absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer) &&
      layer >= config.num_hidden_layers) {
    return "of a layer behind the last, which predicts further tokens";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<AccountedTensor>> AccountForTensors(const Checkpoint& checkpoint,
                                                               const HfConfig& config) try {
  MOERT_ASSIGN_OR_RETURN(const auto experts, CheckpointExperts::Create(&checkpoint, &config));
  TensorClaims claims = experts->claims();
  if (!config.experts_only) DecoderTensors(checkpoint, config, &claims).Claim();
  std::vector<AccountedTensor> account;
  account.reserve(checkpoint.tensors().size());
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    AccountedTensor& a = account.emplace_back();
    a.tensor = &tensor;
    if (const char* part = claims.PartOf(tensor)) {
      a.fate = TensorFate::kUsed;
      a.what = part;
      continue;
    }
    const char* host = HostTensor(experts->names(), config.moe, tensor.name);
    a.what = host != nullptr ? host : WhyLeftOut(config, tensor.name);
    a.fate = a.what.empty() ? TensorFate::kUnknown : TensorFate::kLeftOut;
    if (a.fate == TensorFate::kUnknown) a.what = "nothing reads it";
  }
  return account;
} catch (...) {
  return ExceptionStatus(checkpoint.path());
}

absl::Status CheckTensors(const Checkpoint& checkpoint, const HfConfig& config) try {
  if (config.experts_only) {
    return Unimplemented(
        "{}: model_type {}: its experts are read (OpenModel, moert-pack quantize), but no decoder "
        "here has the rest of the model; other ways: moert.from_pretrained in Python "
        "(docs/guide/python.md), or a host that calls each layer's experts (docs/guide/hosts.md)",
        checkpoint.path(), config.model_type);
  }
  MOERT_ASSIGN_OR_RETURN(const auto account, AccountForTensors(checkpoint, config));
  for (const AccountedTensor& a : account) {
    if (a.fate == TensorFate::kUnknown) return UnreadTensor(checkpoint, *a.tensor);
  }
  return absl::OkStatus();
} catch (...) {
  return ExceptionStatus(checkpoint.path());
}

std::vector<std::string> StrayFiles(const Checkpoint& checkpoint) try {
  namespace fs = std::filesystem;
  std::vector<std::string> stray;
  std::error_code ec;
  if (!fs::is_directory(checkpoint.path(), ec)) return stray;
  const absl::StatusOr<std::vector<std::string>> names = FolderNames(checkpoint.path());
  if (!names.ok()) return stray;
  for (const std::string& name : *names) {
    if (!absl::EndsWith(name, ".safetensors")) continue;
    bool part = false;
    for (int i = 0; i < checkpoint.num_files(); ++i) {
      part = part || fs::path(checkpoint.file(i).path()).filename() == name;
    }
    if (!part) stray.push_back(name);
  }
  std::sort(stray.begin(), stray.end());
  return stray;
} catch (...) {
  return {};  // no memory for a list of names
}

}  // namespace moert
