#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/config_account.h"
#include "checkpoint/decoder_config.h"
#include "checkpoint/moe_config.h"

namespace moert {
namespace {

constexpr char kIndexerTypes[] = "indexer_types";
constexpr char kIndexerPattern[] = "index_topk_pattern";

// A list with "full" or "shared" per layer.
std::vector<bool> SharesByType(JsonValue types, ConfigFields& fields, int64_t layers) {
  std::vector<bool> shares;
  if (types.is_array() && static_cast<int64_t>(types.size()) == layers) {
    for (const JsonValue type : types.elements()) {
      if (!type.Is("full") && !type.Is("shared")) break;
      shares.push_back(type.Is("shared"));
    }
  }
  if (static_cast<int64_t>(shares.size()) != layers) {
    fields.Fail(kIndexerTypes, fmt::format("legal is a list of {} names, full or shared", layers));
  }
  return shares;
}

// The same with one letter per layer, F or S.
std::vector<bool> SharesByLetter(ConfigFields& fields, int64_t layers) {
  const std::string pattern = fields.String(kIndexerPattern, "");
  if (static_cast<int64_t>(pattern.size()) != layers ||
      pattern.find_first_not_of("FS") != std::string::npos) {
    fields.Fail(kIndexerPattern, fmt::format("legal are {} letters, F or S", layers));
  }
  std::vector<bool> shares;
  for (const char letter : pattern) shares.push_back(letter == 'S');
  return shares;
}

// Layers before the offset have indexers of their own; after it every index_topk_freq-th layer
// does.
std::vector<bool> SharesByInterval(int64_t interval, int64_t offset, int64_t layers) {
  std::vector<bool> shares;
  for (int64_t i = 0; i < layers; ++i) {
    shares.push_back(std::max<int64_t>(i - offset + 1, 0) % interval != 0);
  }
  return shares;
}

// The most explicit field decides; published files have several that agree.
std::vector<bool> ReadShares(ConfigFields& fields, int64_t layers) {
  const int64_t interval = fields.Int("index_topk_freq", 1, kMaxLayerCount, 1);
  const int64_t offset = fields.Int("index_skip_topk_offset", 0, kMaxLayerCount, 2);
  const bool letters = fields.Has(kIndexerPattern);
  const char* decides = "index_skip_topk_offset";
  std::vector<bool> shares;
  if (const auto types = fields.Find(kIndexerTypes)) {
    decides = kIndexerTypes;
    shares = SharesByType(*types, fields, layers);
  } else if (letters) {
    decides = kIndexerPattern;
    shares = SharesByLetter(fields, layers);
  } else {
    shares = SharesByInterval(interval, offset, layers);
  }
  if (!shares.empty() && shares[0]) {
    fields.Fail(decides, "legal is what gives the first layer an indexer of its own");
  }
  return shares;
}

void CheckLayerTypes(ConfigFields& fields, size_t layers) {
  const auto types = fields.Find("layer_types");
  if (!types) return;
  bool same = types->is_array() && types->size() == layers;
  for (const JsonValue type : types->elements()) {
    same = same && (type.Is("indexed_attention") || type.Is("deepseek_sparse_attention"));
  }
  if (!same) {
    fields.Fail("layer_types", fmt::format("legal is {} times indexed_attention", layers));
  }
}

}  // namespace

void ReadIndexer(ConfigFields& fields, HfConfig& config) {
  IndexerConfig& indexer = config.indexer;
  indexer.heads = static_cast<int>(fields.Int("index_n_heads", 1, kMaxHeads));
  indexer.head_dim = fields.Int("index_head_dim", config.latent.rope_dim, kMaxHeadDim);
  indexer.top_k = fields.Int("index_topk", 1, kMaxPositions);
  if (config.latent.q_rank == 0) {
    fields.Fail("q_lora_rank", "legal with an indexer is a number above 0");
  }
  CheckLayerTypes(fields, config.mixers.size());
  const std::vector<bool> shares = ReadShares(fields, config.num_hidden_layers);
  if (!fields.status().ok()) return;
  for (size_t i = 0; i < shares.size(); ++i) config.mixers[i].shares_index = shares[i];
}

namespace {

constexpr char kAttentionTypes[] = "layer_types";
constexpr char kBlockFlags[] = "sparse_attention_freq";

// A size for which published files and transformers use different names.
int64_t ReadSize(ConfigFields& fields, const char* key, const char* published, int64_t low,
                 int64_t high) {
  if (!fields.Has(published)) return fields.Int(key, low, high);
  const int64_t value = fields.Int(published, low, high);
  return fields.Int(key, value, value, value);
}

// Whether each layer chooses blocks; empty if the fields are not legal.
std::vector<bool> ReadLayers(ConfigFields& fields, HfConfig& config) {
  const size_t layers = config.mixers.size();
  std::vector<bool> chooses;
  if (const auto types = fields.Find(kAttentionTypes)) {
    WithoutEffect(fields, {kBlockFlags}, "layer_types is there, too", &config.unused);
    bool legal = types->is_array() && types->size() == layers;
    for (const JsonValue type : types->elements()) {
      chooses.push_back(type.Is("minimax_m3_sparse"));
      legal = legal && (chooses.back() || type.Is("full_attention"));
    }
    if (legal) return chooses;
    fields.Fail(
        kAttentionTypes,
        fmt::format("legal is a list of {} names, full_attention or minimax_m3_sparse", layers));
    return {};
  }
  const std::vector<int64_t> flags = fields.Ints(kBlockFlags, 0, 1);
  if (!flags.empty() && flags.size() != layers) {
    fields.Fail(
        kBlockFlags,
        fmt::format("legal is a list of {} numbers, 1 where a layer chooses what it sees", layers));
    return {};
  }
  chooses.assign(layers, false);
  for (size_t i = 0; i < flags.size(); ++i) chooses[i] = flags[i] != 0;
  return chooses;
}

// An indexer may have values of its own, which are not supported.
void CheckNoValues(ConfigFields& fields, const std::vector<bool>& chooses) {
  constexpr char kKey[] = "sparse_disable_index_value";
  const std::vector<int64_t> disabled = fields.Ints(kKey, 0, 1);
  if (disabled.empty()) return;
  bool legal = disabled.size() == chooses.size();
  for (size_t i = 0; legal && i < chooses.size(); ++i) legal = !chooses[i] || disabled[i] != 0;
  if (!legal) {
    fields.Fail(kKey,
                fmt::format("legal is a list of {} numbers, 1 where sparse_attention_freq has a 1",
                            chooses.size()));
  }
}

}  // namespace

void ReadBlockIndexer(ConfigFields& fields, HfConfig& config) {
  const std::vector<bool> chooses = ReadLayers(fields, config);
  CheckNoValues(fields, chooses);
  if (!fields.status().ok()) return;
  if (std::find(chooses.begin(), chooses.end(), true) == chooses.end()) {
    WithoutEffect(fields,
                  {"index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks",
                   "index_local_blocks", "sparse_num_index_heads", "sparse_index_dim",
                   "sparse_block_size", "sparse_topk_blocks", "sparse_local_block"},
                  "no layer chooses what it sees", &config.unused);
    return;
  }
  const int64_t kv_heads = config.num_key_value_heads;
  IndexerConfig& indexer = config.indexer;
  indexer.heads = static_cast<int>(
      ReadSize(fields, "index_n_heads", "sparse_num_index_heads", kv_heads, kv_heads));
  indexer.head_dim = ReadSize(fields, "index_head_dim", "sparse_index_dim", 2, kMaxHeadDim);
  indexer.block_size = ReadSize(fields, "index_block_size", "sparse_block_size", 1, 1 << 20);
  indexer.top_k = ReadSize(fields, "index_topk_blocks", "sparse_topk_blocks", 1, 1 << 20);
  indexer.local_blocks =
      ReadSize(fields, "index_local_blocks", "sparse_local_block", 0, indexer.top_k);
  for (size_t i = 0; i < chooses.size(); ++i) config.mixers[i].ignores_index = !chooses[i];
}

void CheckBlockIndexer(ConfigFields& fields, const HfConfig& config) {
  if (config.indexer.head_dim >= config.rope.dim) return;
  fields.Fail(fields.Has("sparse_index_dim") ? "sparse_index_dim" : "index_head_dim",
              fmt::format("legal is what RoPE rotates ({} channels) or more", config.rope.dim));
}

}  // namespace moert
