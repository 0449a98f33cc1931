#include "checkpoint/config_account.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/printable.h"

namespace moert {
namespace {

constexpr char kTraining[] = "of training";
constexpr char kGeneration[] = "of generation and tokens, which the caller decides about";
constexpr char kOrigin[] = "of where the file comes from";
constexpr char kOutputs[] = "of what a call returns";
constexpr char kFurther[] = "of layers that predict further tokens, which are not read";
constexpr char kManner[] = "of how another program computes the same";
constexpr char kTensors[] = "the tensors tell";
constexpr char kOtherScaling[] = "of another kind of scaling";

struct Known {
  const char* why;
  absl::string_view keys;  // with spaces between them
};

constexpr Known kModelFields[] = {
    {kTraining,
     "initializer_range tf_legacy_loss attn_pdrop resid_pdrop embd_pdrop router_aux_loss_coef "
     "router_z_loss_coef aux_loss_alpha seq_aux router_jitter_noise input_jitter_noise "
     "gradient_checkpointing"},
    {kGeneration,
     "max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups "
     "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
     "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences "
     "remove_invalid_values exponential_decay_length_penalty suppress_tokens "
     "begin_suppress_tokens cache_implementation tokenizer_class prefix model_max_length "
     "max_tokenizer_truncation"},
    {kOrigin,
     "architectures auto_map model_type torch_dtype dtype transformers_version unsloth_version "
     "_name_or_path _commit_hash task_specific_params id2label label2id problem_type "
     "finetuning_task is_decoder is_encoder_decoder add_cross_attention "
     "cross_attention_hidden_size tie_encoder_decoder"},
    {kOutputs,
     "use_cache return_dict return_dict_in_generate output_scores output_attentions "
     "output_hidden_states output_router_logits"},
    {kOtherScaling, "original_max_position_embeddings"},
    {kFurther,
     "num_nextn_predict_layers num_mtp_modules mtp_transformer_layers use_mtp "
     "mtp_num_hidden_layers mtp_use_dedicated_embeddings"},
    {kManner,
     "pretraining_tp ep_size torchscript use_bfloat16 chunk_size_feed_forward "
     "attn_implementation _attn_implementation _attn_implementation_autoset "
     "_flash_attn_2_enabled _experts_implementation for_llm_compressor fuse_rope"},
};

// Words in a field's name that indicate how something is computed.
constexpr const char* kModelWords[] = {
    "moe",     "expert",   "rout",     "topk",      "top_k",  "gat",     "scor",     "norm",
    "rope",    "rotary",   "attn",     "attention", "head",   "window",  "chunk",    "cap",
    "scal",    "multip",   "mlp",      "ffn",       "bias",   "act",     "layer",    "hash",
    "group",   "logit",    "residual", "embed",     "posit",  "alibi",   "hidden",   "intermediate",
    "latent",  "lora",     "kv",       "conv",      "ssm",    "mamba",   "linear",   "clip",
    "clamp",   "sink",     "sparse",   "dense",     "offset", "factor",  "temperat", "alpha",
    "beta",    "dim",      "qk",       "mask",      "causal", "bidirec", "share",    "skip",
    "eps",     "tie",      "theta",    "per_",      "swa",    "cla",     "mla",      "limit",
    "quantiz", "compress", "index_",   "indexer"};

// The same for MoE blocks only.
constexpr const char* kExpertWords[] = {"moe",          "expert", "rout", "topk",     "top_k",
                                        "scor",         "ffn",    "hash", "mlp",      "swiglu",
                                        "intermediate", "latent", "zero", "norm_top", "gate_up"};

// Prefixes of fields of attention, or of parts that are no language model.
constexpr const char* kOtherParts[] = {"index_", "mtp_", "vision_", "audio_", "attn_", "linear_"};

constexpr char kOnePosition[] = "of pictures: a text's positions are the same in every section";

// Fields of one kind of scaling that may be present beside another kind.
constexpr Known kRopeFields[] = {
    {kOnePosition, "mrope_section mrope_interleaved"},
    {"rope_type is there, too", "type"},
    {kOtherScaling,
     "rope_theta factor alpha beta_fast beta_slow mscale mscale_all_dim truncate "
     "attention_factor original_max_position_embeddings low_freq_factor high_freq_factor "
     "short_factor long_factor short_mscale long_mscale"},
    {"rotary_dim is there, too", "partial_rotary_factor"},
};

constexpr Known kQuantizationFields[] = {
    {kTensors,
     "modules_to_not_convert modules_in_block_to_quantize ignore ignored_layers exclude_modules "
     "moe_quant_algo weight_per_tensor lm_head desc_act static_groups fmt scale_fmt dynamic "
     "extra_config to_quant_block_names"},
    {"activations are not rounded to fp8", "act_per_tensor activation_scale_ub activation_scheme"},
    {"activations are not rounded", "act_data_type act_dynamic act_group_size act_sym"},
    {"keys and values are not quantized", "kv_cache_scheme kv_cache_quant_algo"},
    {kOrigin,
     "version quantization_status global_compression_ratio model_name_or_path "
     "model_file_base_name autoround_version meta quantizer producer"},
    {kManner,
     "is_marlin_format backend use_exllama exllama_config disable_exllama max_input_length "
     "use_cuda_fp16 do_fuse fuse_max_seq_len modules_to_fuse"},
    {kTraining,
     "damp_percent damp_auto_increment true_sequential block_name_to_quantize "
     "module_name_preceding_first_block cache_block_outputs batch_size dataset model_seqlen "
     "tokenizer act_group_aware amp enable_minmax_tuning enable_norm_bias_tuning "
     "enable_quanted_input gradient_accumulate_steps iters low_gpu_mem_usage lr minmax_lr "
     "nsamples scale_dtype seqlen"},
};

// Values of these fields other than the harmless one are refused where they are read.
constexpr const char* kQuantizationWords[] = {
    "bits", "group",    "zero",      "scale",    "pack", "order", "dynamic",
    "rot",  "hadamard", "transform", "sparsity", "act",  "input", "config"};

constexpr char kUnknown[] = "not known here; its name says nothing of what is computed";

struct Scope {
  absl::Span<const Known> known;
  absl::Span<const char* const> words;
  bool strict;  // every field that is not known may compute
};

Scope ScopeOf(FieldScope scope) {
  switch (scope) {
    case FieldScope::kRope:
      return {kRopeFields, {}, true};
    case FieldScope::kQuantization:
      return {kQuantizationFields, kQuantizationWords, false};
    case FieldScope::kExperts:
      return {kModelFields, kExpertWords, false};
    case FieldScope::kModel:
    case FieldScope::kAround:
      break;
  }
  return {kModelFields, kModelWords, false};
}

bool HasOneOf(const std::string& key, absl::Span<const char* const> words) {
  const std::string lower = absl::AsciiStrToLower(key);
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return absl::StrContains(lower, word); });
}

// The reason why a field with a telling name has no effect, else null.
const char* WhyByName(const std::string& key) {
  if (absl::StrContains(key, "dropout")) return kTraining;
  if (absl::EndsWith(key, "_id") && !HasOneOf(key, kExpertWords)) return kGeneration;
  return nullptr;
}

}  // namespace

void AccountForFields(FieldScope scope, const std::string& prefix, ConfigFields& fields,
                      std::vector<UnusedField>* unused) {
  const Scope of = ScopeOf(scope);
  for (const std::string& key : fields.Unasked()) {
    const auto known = std::find_if(of.known.begin(), of.known.end(), [&](const Known& k) {
      const std::vector<absl::string_view> keys = absl::StrSplit(k.keys, ' ');
      return std::find(keys.begin(), keys.end(), key) != keys.end();
    });
    if (known != of.known.end()) {
      unused->push_back({prefix + key, known->why});
      continue;
    }
    if (const char* why = of.strict ? nullptr : WhyByName(key)) {
      unused->push_back({prefix + Printable(key), why});
      continue;
    }
    if (scope == FieldScope::kAround) {
      unused->push_back({prefix + key, "of what is around the language model"});
      continue;
    }
    const bool other = scope == FieldScope::kExperts &&
                       std::any_of(std::begin(kOtherParts), std::end(kOtherParts),
                                   [&](const char* part) { return absl::StartsWith(key, part); });
    const bool computes = !other && (of.strict || HasOneOf(key, of.words));
    if (!computes) {
      unused->push_back(
          {prefix + Printable(key), scope == FieldScope::kExperts ? kOfTheHost : kUnknown});
      continue;
    }
    fields.Fail(key.c_str(),
                "a field that is not read and may change what the model computes: without it other "
                "numbers might come out. Where it changes nothing, take it out of the file");
  }
}

void WithoutEffect(ConfigFields& fields, std::initializer_list<const char*> keys, const char* why,
                   std::vector<UnusedField>* unused) {
  for (const char* key : keys) {
    if (fields.Has(key)) unused->push_back({key, why});
  }
}

}  // namespace moert
