#include "cli/doctor/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "cli/common/model_parts.h"
#include "cli/common/stored_scheme.h"
#include "host/chat_template.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/gguf.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/pack.h"
#include "moert/scheme.h"
#include "moert/source/expert_source.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr const char* kNarrower[] = {"w8a16_g128", "w4a16_g128", "w3a16_g128_asym",
                                     "w2a16_g64_asym"};

void AddExperts(const ExpertSource& source, const MoeModelSpec& moe, bool stored,
                ModelFacts* facts) {
  ExpertsAs as;
  as.scheme = std::string(source.version_name(0));
  as.stored = stored;
  for (int l = 0; l < moe.num_layers(); ++l) {
    const MoeLayerSpec& layer = moe.layers[static_cast<size_t>(l)];
    int64_t bytes = 0;
    for (int e = 0; e < layer.num_experts; ++e) bytes += source.layout(l, e, 0).bytes;
    as.bytes += bytes;
    as.token_bytes += bytes / layer.num_experts * layer.routing.top_k;
  }
  facts->schemes.push_back(std::move(as));
}

/// The layer's mixer; the default one for configurations that do not list mixers.
MixerConfig MixerOf(const HfConfig& c, int layer) {
  const auto at = static_cast<size_t>(layer);
  return at < c.mixers.size() ? c.mixers[at] : MixerConfig();
}

bool HasIndexer(const HfConfig& c, int layer) {
  const MixerConfig mixer = MixerOf(c, layer);
  return c.indexer.heads > 0 && !mixer.shares_index && !mixer.ignores_index;
}

/// Channels of a layer's keys and values at one position, an indexer's keys among them.
int64_t KvChannels(const HfConfig& c, int layer) {
  const int64_t index_keys = HasIndexer(c, layer) ? c.indexer.head_dim : 0;
  if (c.compressed.q_rank > 0) {
    const int64_t keys = 2 * c.head_dim, rate = MixerOf(c, layer).rate;
    return keys + (rate > 0 ? (keys + index_keys) / rate : 0);
  }
  if (c.latent.kv_rank == 0) {
    return c.KvHeads(layer) * (c.HeadDim(layer) + c.ValueDim(layer)) + index_keys;
  }
  return c.latent.kv_rank + c.latent.rope_dim + index_keys;
}

/// Weights of a layer's indexer; 0 where it has none of its own.
int64_t IndexerWeights(const HfConfig& c, int layer) {
  if (!HasIndexer(c, layer)) return 0;
  const IndexerConfig& i = c.indexer;
  if (i.block_size > 0) return c.hidden_size * (i.heads + 1) * i.head_dim;
  const int64_t rank = c.latent.q_rank + c.compressed.q_rank;
  const int64_t keys = (c.compressed.q_rank > 0 ? 4 : 1) * i.head_dim;
  return rank * i.heads * i.head_dim + c.hidden_size * (keys + i.heads);
}

/// Weights of a compressed attention layer, with or without entries.
int64_t CompressedWeights(const HfConfig& c, int layer) {
  const CompressedAttentionConfig& a = c.compressed;
  const int64_t hidden = c.hidden_size, channels = c.num_attention_heads * c.head_dim;
  const int64_t outputs = a.groups * a.group_rank;
  const int64_t series = MixerOf(c, layer).rate == 0 ? 0 : HasIndexer(c, layer) ? 2 : 1;
  return hidden * (a.q_rank + c.head_dim * (1 + 2 * series) + outputs) + a.q_rank * channels +
         channels * a.group_rank + IndexerWeights(c, layer);
}

/// Weights of a layer's hyper-connections: in fp32, so each counts for two.
int64_t StreamWeights(const HfConfig& c) {
  const int64_t streams = c.hyper.streams;
  return 2 * 2 * (2 + streams) * streams * streams * c.hidden_size;
}

/// Weights of a layer's mixer.
int64_t MixerWeights(const HfConfig& c, int layer) {
  const int64_t hidden = c.hidden_size, heads = c.num_attention_heads;
  if (MixerOf(c, layer).kind == MixerKind::kDeltaNet) {
    const DeltaNetConfig& d = c.delta_net;
    const int64_t keys = d.key_heads * d.key_dim, values = d.value_heads * d.value_dim;
    return hidden * (2 * keys + 3 * values);
  }
  if (c.compressed.q_rank > 0) return CompressedWeights(c, layer);
  if (c.latent.kv_rank > 0) {
    const LatentAttentionConfig& a = c.latent;
    const int64_t query = heads * (a.nope_dim + a.rope_dim);
    const int64_t queries = a.q_rank > 0 ? a.q_rank * (hidden + query) : hidden * query;
    return IndexerWeights(c, layer) + queries + hidden * (a.kv_rank + a.rope_dim) +
           a.kv_rank * heads * (a.nope_dim + a.value_dim) + heads * a.value_dim * hidden;
  }
  const int64_t queries = (c.attention_gate ? 2 : 1) * c.HeadDim(layer);
  const int64_t kv = c.KvHeads(layer) * (c.HeadDim(layer) + c.ValueDim(layer));
  return hidden * (heads * (queries + c.ValueDim(layer)) + kv) + IndexerWeights(c, layer);
}

/// Bytes of keys and values, in fp32 as the example decoder keeps them.
int64_t KvBytes(const HfConfig& c, int64_t tokens) {
  tokens = std::min(tokens, c.max_position_embeddings);
  int64_t channels = 0;
  for (int l = 0; l < c.num_hidden_layers; ++l) {
    if (MixerOf(c, l).kind != MixerKind::kDeltaNet) channels += KvChannels(c, l);
  }
  return 4 * channels * tokens;
}

/// For a config alone: dense weights count as bf16.
void AddDense(const HfConfig& c, ModelFacts* facts) {
  int64_t weights = 0;
  for (int l = 0; l < c.num_hidden_layers; ++l) {
    weights += MixerWeights(c, l) + StreamWeights(c);
    if (c.MoeLayerIndex(l) < 0) weights += 3 * c.hidden_size * c.dense_intermediate;
  }
  for (const MoeLayerSpec& layer : c.moe.layers) {
    weights += 3 * layer.hidden * layer.shared_intermediate + 2 * layer.hidden * layer.num_experts;
  }
  const int64_t table = c.vocab_size * c.hidden_size;
  facts->dense_token_bytes = 2 * (weights + table);
  facts->dense_bytes = facts->dense_token_bytes + (c.tie_word_embeddings ? 0 : 2 * table);
}

/// For a checkpoint: everything in its files except routed experts.
void AddDense(const Checkpoint& checkpoint, const HfConfig& c, ModelFacts* facts) {
  int64_t table = 0, dense = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    if (PartOf(t.name) != kRoutedExperts) dense += DenseBytes(t);
    if (absl::StrContains(t.name, c.embedding_name)) table += t.bytes;
  }
  facts->dense_bytes = dense;
  facts->dense_token_bytes = dense - (c.tie_word_embeddings ? 0 : table);
}

absl::StatusOr<std::unique_ptr<ExpertSource>> Layout(const std::string& path,
                                                     const HfConfig& config,
                                                     const std::string& scheme) {
  MOERT_ASSIGN_OR_RETURN(const Scheme parsed, Scheme::Parse(scheme));
  return MakeLayoutSource(path, config.moe, {PackVersion::Uniform(parsed)});
}

/// The experts as the config says, unless the tensors have them in several schemes.
absl::StatusOr<std::unique_ptr<ExpertSource>> StoredLayout(const std::string& path,
                                                           const HfConfig& config) {
  if (config.quantization.form != StoredWeights::kPlain) {
    OpenModelOptions options;
    options.mode = OpenMode::kInPlace;
    auto source = OpenModel(path, options);
    if (source.ok() && (*source)->version_name(0) == "stored") return source;
  }
  return Layout(path, config, StoredScheme(config.quantization));
}

absl::StatusOr<ModelFacts> ReadFolder(const std::string& path, int64_t context) {
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(path));
  ModelFacts facts;
  facts.path = path;
  facts.architecture = config.model_type;
  facts.layers = config.num_hidden_layers;
  facts.moe_layers = config.moe.num_layers();
  const MoeLayerSpec& first = config.moe.layers.front();
  facts.experts = first.num_experts;
  facts.top_k = first.routing.top_k;
  facts.hidden = first.hidden;
  facts.intermediate = first.intermediate;
  facts.context = std::min(context, config.max_position_embeddings);
  facts.kv_bytes = KvBytes(config, context);
  const bool floats = config.quantization.form == StoredWeights::kPlain;
  if (!floats) facts.stored = std::string(StoredWeightsName(config.quantization.form));
  const auto checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok() && !absl::IsNotFound(checkpoint.status())) return checkpoint.status();
  if (checkpoint.ok()) {
    facts.kind = ModelKind::kCheckpoint;
    facts.chats = !absl::IsNotFound(host::ChatTemplate::LoadModel(path).status());
    AddDense(**checkpoint, config, &facts);
  } else {
    AddDense(config, &facts);
  }
  MOERT_ASSIGN_OR_RETURN(const auto source, StoredLayout(path, config));
  AddExperts(*source, config.moe, /*stored=*/true, &facts);
  EngineOptions cpu;
  cpu.backend = BackendKind::kCpu;
  MOERT_ASSIGN_OR_RETURN(const MemoryPlan plan, Engine::Plan(*source, cpu));
  facts.fixed_bytes = plan.fixed_bytes();
  for (const char* scheme : kNarrower) {
    if (!floats) break;
    MOERT_ASSIGN_OR_RETURN(const auto narrow, Layout(path, config, scheme));
    AddExperts(*narrow, config.moe, /*stored=*/false, &facts);
  }
  return facts;
}

absl::StatusOr<ModelFacts> ReadFile(const std::string& path, int64_t context) {
  MOERT_ASSIGN_OR_RETURN(const GgufInfo info, ReadGguf(path));
  if (info.experts == 0 || info.experts_used == 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} has no routed experts ({}.expert_count): libmoert has no part in it",
                    path, info.architecture, info.architecture));
  }
  ModelFacts facts;
  facts.kind = ModelKind::kGguf;
  facts.path = path;
  facts.architecture = info.architecture;
  facts.layers = static_cast<int>(std::min<int64_t>(info.layers, 1 << 20));
  facts.experts = info.experts;
  facts.top_k = std::min(info.experts_used, info.experts);
  facts.hidden = info.hidden;
  facts.intermediate = info.expert_width;
  facts.context = info.context > 0 ? std::min(context, info.context) : context;
  std::map<std::string, int64_t> types;  // bytes of experts
  std::set<std::string> blocks;
  ExpertsAs as;
  as.stored = true;
  int64_t table = 0;
  bool head = false;
  for (const GgufTensor& t : info.tensors) {
    if (GgufInfo::IsExpert(t)) {
      as.bytes += t.bytes;
      types[t.type] += t.bytes;
      blocks.insert(t.name.substr(0, t.name.find(".ffn_")));
      continue;
    }
    facts.dense_bytes += t.bytes;
    if (t.name == "token_embd.weight") table = t.bytes;
    head = head || t.name == "output.weight";
  }
  facts.moe_layers = static_cast<int>(blocks.size());
  facts.dense_token_bytes = facts.dense_bytes - (head ? table : 0);
  for (const auto& [type, bytes] : types) {
    if (as.scheme.empty() || bytes > types[as.scheme]) as.scheme = type;
  }
  as.token_bytes =
      static_cast<int64_t>(static_cast<double>(as.bytes) * static_cast<double>(facts.top_k) /
                           static_cast<double>(facts.experts));
  facts.stored = as.scheme;
  facts.schemes.push_back(std::move(as));
  // llama.cpp keeps keys and values in f16.
  const int64_t key = info.key_length > 0 ? info.key_length
                      : info.heads > 0    ? info.hidden / info.heads
                                          : 0;
  const int64_t value = info.value_length > 0 ? info.value_length : key;
  const int64_t channels =
      info.kv_rank > 0 ? info.kv_rank + 64 : std::max<int64_t>(info.kv_heads, 1) * (key + value);
  facts.kv_bytes =
      static_cast<int64_t>(2.0 * static_cast<double>(facts.layers) * static_cast<double>(channels) *
                           static_cast<double>(facts.context));
  return facts;
}

}  // namespace

absl::StatusOr<ModelFacts> ReadModelFacts(const std::string& path, int64_t context) {
  return absl::EndsWith(path, ".gguf") ? ReadFile(path, context) : ReadFolder(path, context);
}

}  // namespace moert::cli
