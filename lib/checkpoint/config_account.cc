#include "checkpoint/config_account.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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
  const char* key;
  const char* why;
};

constexpr Known kModelFields[] = {
    {"initializer_range", kTraining},
    {"tf_legacy_loss", kTraining},
    {"attention_dropout", kTraining},
    {"attn_pdrop", kTraining},
    {"resid_pdrop", kTraining},
    {"embd_pdrop", kTraining},
    {"dropout", kTraining},
    {"hidden_dropout", kTraining},
    {"hidden_dropout_prob", kTraining},
    {"classifier_dropout", kTraining},
    {"router_aux_loss_coef", kTraining},
    {"router_z_loss_coef", kTraining},
    {"aux_loss_alpha", kTraining},
    {"seq_aux", kTraining},
    {"router_jitter_noise", kTraining},
    {"input_jitter_noise", kTraining},
    {"gradient_checkpointing", kTraining},
    {"pad_token_id", kGeneration},
    {"sep_token_id", kGeneration},
    {"unk_token_id", kGeneration},
    {"eod_token_id", kGeneration},
    {"decoder_start_token_id", kGeneration},
    {"forced_bos_token_id", kGeneration},
    {"forced_eos_token_id", kGeneration},
    {"max_length", kGeneration},
    {"max_new_tokens", kGeneration},
    {"min_length", kGeneration},
    {"do_sample", kGeneration},
    {"early_stopping", kGeneration},
    {"num_beams", kGeneration},
    {"num_beam_groups", kGeneration},
    {"diversity_penalty", kGeneration},
    {"temperature", kGeneration},
    {"top_k", kGeneration},
    {"top_p", kGeneration},
    {"typical_p", kGeneration},
    {"repetition_penalty", kGeneration},
    {"length_penalty", kGeneration},
    {"no_repeat_ngram_size", kGeneration},
    {"encoder_no_repeat_ngram_size", kGeneration},
    {"bad_words_ids", kGeneration},
    {"num_return_sequences", kGeneration},
    {"remove_invalid_values", kGeneration},
    {"exponential_decay_length_penalty", kGeneration},
    {"suppress_tokens", kGeneration},
    {"begin_suppress_tokens", kGeneration},
    {"cache_implementation", kGeneration},
    {"tokenizer_class", kGeneration},
    {"prefix", kGeneration},
    {"model_max_length", kGeneration},
    {"max_tokenizer_truncation", kGeneration},
    {"architectures", kOrigin},
    {"auto_map", kOrigin},
    {"model_type", kOrigin},
    {"torch_dtype", kOrigin},
    {"dtype", kOrigin},
    {"transformers_version", kOrigin},
    {"unsloth_version", kOrigin},
    {"_name_or_path", kOrigin},
    {"_commit_hash", kOrigin},
    {"task_specific_params", kOrigin},
    {"id2label", kOrigin},
    {"label2id", kOrigin},
    {"problem_type", kOrigin},
    {"finetuning_task", kOrigin},
    {"is_decoder", kOrigin},
    {"is_encoder_decoder", kOrigin},
    {"add_cross_attention", kOrigin},
    {"cross_attention_hidden_size", kOrigin},
    {"tie_encoder_decoder", kOrigin},
    {"use_cache", kOutputs},
    {"return_dict", kOutputs},
    {"return_dict_in_generate", kOutputs},
    {"output_scores", kOutputs},
    {"output_attentions", kOutputs},
    {"output_hidden_states", kOutputs},
    {"output_router_logits", kOutputs},
    {"original_max_position_embeddings", kOtherScaling},
    {"num_nextn_predict_layers", kFurther},
    {"num_mtp_modules", kFurther},
    {"mtp_transformer_layers", kFurther},
    {"use_mtp", kFurther},
    {"mtp_num_hidden_layers", kFurther},
    {"mtp_use_dedicated_embeddings", kFurther},
    {"pretraining_tp", kManner},
    {"ep_size", kManner},
    {"torchscript", kManner},
    {"use_bfloat16", kManner},
    {"chunk_size_feed_forward", kManner},
    {"attn_implementation", kManner},
    {"_attn_implementation", kManner},
    {"_attn_implementation_autoset", kManner},
    {"_flash_attn_2_enabled", kManner},
    {"_experts_implementation", kManner},
    {"for_llm_compressor", kManner},
    {"fuse_rope", kManner},
};

// Parts of a name that says how something is computed.
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

// The same of MoE blocks alone.
constexpr const char* kExpertWords[] = {"moe",          "expert", "rout", "topk",     "top_k",
                                        "scor",         "ffn",    "hash", "mlp",      "swiglu",
                                        "intermediate", "latent", "zero", "norm_top", "gate_up"};

// Beginnings of names of fields that attention, or what is no language model, has.
constexpr const char* kOtherParts[] = {"index_", "mtp_", "vision_", "audio_", "attn_", "linear_"};

constexpr char kOnePosition[] = "of pictures: a text's positions are the same in every section";

// Fields of one kind of scaling that a file may have beside another.
constexpr Known kRopeFields[] = {
    {"mrope_section", kOnePosition},
    {"mrope_interleaved", kOnePosition},
    {"type", "rope_type is there, too"},
    {"rope_theta", kOtherScaling},
    {"factor", kOtherScaling},
    {"alpha", kOtherScaling},
    {"beta_fast", kOtherScaling},
    {"beta_slow", kOtherScaling},
    {"mscale", kOtherScaling},
    {"mscale_all_dim", kOtherScaling},
    {"truncate", kOtherScaling},
    {"attention_factor", kOtherScaling},
    {"original_max_position_embeddings", kOtherScaling},
    {"low_freq_factor", kOtherScaling},
    {"high_freq_factor", kOtherScaling},
    {"short_factor", kOtherScaling},
    {"long_factor", kOtherScaling},
    {"short_mscale", kOtherScaling},
    {"long_mscale", kOtherScaling},
    {"partial_rotary_factor", "rotary_dim is there, too"},
};

constexpr Known kQuantizationFields[] = {
    {"modules_to_not_convert", kTensors},
    {"modules_in_block_to_quantize", kTensors},
    {"ignore", kTensors},
    {"ignored_layers", kTensors},
    {"exclude_modules", kTensors},
    {"moe_quant_algo", kTensors},
    {"weight_per_tensor", kTensors},
    {"act_per_tensor", "activations are not rounded to fp8"},
    {"lm_head", kTensors},
    {"desc_act", kTensors},
    {"static_groups", kTensors},
    {"fmt", kTensors},
    {"scale_fmt", kTensors},
    {"dynamic", kTensors},
    {"extra_config", kTensors},
    {"to_quant_block_names", kTensors},
    {"activation_scale_ub", "activations are not rounded to fp8"},
    {"act_data_type", "activations are not rounded"},
    {"act_dynamic", "activations are not rounded"},
    {"act_group_size", "activations are not rounded"},
    {"act_sym", "activations are not rounded"},
    {"activation_scheme", "activations are not rounded to fp8"},
    {"kv_cache_scheme", "keys and values are not quantized"},
    {"kv_cache_quant_algo", "keys and values are not quantized"},
    {"version", kOrigin},
    {"quantization_status", kOrigin},
    {"global_compression_ratio", kOrigin},
    {"model_name_or_path", kOrigin},
    {"model_file_base_name", kOrigin},
    {"is_marlin_format", kManner},
    {"backend", kManner},
    {"use_exllama", kManner},
    {"exllama_config", kManner},
    {"disable_exllama", kManner},
    {"max_input_length", kManner},
    {"use_cuda_fp16", kManner},
    {"do_fuse", kManner},
    {"fuse_max_seq_len", kManner},
    {"modules_to_fuse", kManner},
    {"damp_percent", kTraining},
    {"damp_auto_increment", kTraining},
    {"true_sequential", kTraining},
    {"block_name_to_quantize", kTraining},
    {"module_name_preceding_first_block", kTraining},
    {"cache_block_outputs", kTraining},
    {"batch_size", kTraining},
    {"dataset", kTraining},
    {"model_seqlen", kTraining},
    {"tokenizer", kTraining},
    {"act_group_aware", kTraining},
    {"amp", kTraining},
    {"enable_minmax_tuning", kTraining},
    {"enable_norm_bias_tuning", kTraining},
    {"enable_quanted_input", kTraining},
    {"gradient_accumulate_steps", kTraining},
    {"iters", kTraining},
    {"low_gpu_mem_usage", kTraining},
    {"lr", kTraining},
    {"minmax_lr", kTraining},
    {"nsamples", kTraining},
    {"scale_dtype", kTraining},
    {"seqlen", kTraining},
    {"autoround_version", kOrigin},
    {"meta", kOrigin},
    {"quantizer", kOrigin},
    {"producer", kOrigin},
};

// Another value of these than the harmless one is refused where it is read.
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

}  // namespace

void AccountForFields(FieldScope scope, const std::string& prefix, ConfigFields& fields,
                      std::vector<UnusedField>* unused) {
  const Scope of = ScopeOf(scope);
  for (const std::string& key : fields.Unasked()) {
    const auto known = std::find_if(of.known.begin(), of.known.end(),
                                    [&](const Known& k) { return key == k.key; });
    if (known != of.known.end()) {
      unused->push_back({prefix + key, known->why});
      continue;
    }
    if (scope == FieldScope::kAround) {
      unused->push_back({prefix + key, "of what is around the language model"});
      continue;
    }
    const bool other = scope == FieldScope::kExperts &&
                       std::any_of(std::begin(kOtherParts), std::end(kOtherParts),
                                   [&](const char* part) { return absl::StartsWith(key, part); });
    const bool computes =
        !other &&
        (of.strict || std::any_of(of.words.begin(), of.words.end(), [&](const char* word) {
           return absl::StrContains(absl::AsciiStrToLower(key), word);
         }));
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
