#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/config_account.h"
#include "checkpoint/indexer_config.h"
#include "checkpoint/moe_config.h"

namespace moert {
namespace {

constexpr char kAttentionTypes[] = "layer_types";
constexpr char kBlockFlags[] = "sparse_attention_freq";

// A size that published files call otherwise than transformers.
int64_t ReadSize(ConfigFields& fields, const char* key, const char* published, int64_t low,
                 int64_t high) {
  if (!fields.Has(published)) return fields.Int(key, low, high);
  const int64_t value = fields.Int(published, low, high);
  return fields.Int(key, value, value, value);
}

// Whether each layer chooses blocks; empty where the fields are not legal.
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

// An indexer may have values of its own, which nothing here adds.
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
