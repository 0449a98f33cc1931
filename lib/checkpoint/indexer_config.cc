#include "checkpoint/indexer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/moe_config.h"

namespace moert {
namespace {

constexpr char kIndexerTypes[] = "indexer_types";
constexpr char kIndexerPattern[] = "index_topk_pattern";

// A list with "full" or "shared" for each layer.
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

// The same as a letter for each layer, F or S.
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

// Layers in front of the offset have indexers of their own, then every index_topk_freq-th.
std::vector<bool> SharesByInterval(int64_t interval, int64_t offset, int64_t layers) {
  std::vector<bool> shares;
  for (int64_t i = 0; i < layers; ++i) {
    shares.push_back(std::max<int64_t>(i - offset + 1, 0) % interval != 0);
  }
  return shares;
}

// The most explicit field decides; published files have several that say the same.
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

}  // namespace moert
