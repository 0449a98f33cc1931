#include "checkpoint/compressed_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config_account.h"
#include "checkpoint/moe_config.h"

namespace moert {
namespace {

constexpr char kRates[] = "compress_rates";
constexpr char kRatios[] = "compress_ratios";
constexpr char kLayersSee[] = "layer_types";
constexpr char kWindowAlone[] = "sliding_attention";
constexpr char kChosenEntries[] = "compressed_sparse_attention";
constexpr char kAllEntries[] = "heavily_compressed_attention";

// The kinds of layers, and the number that published files use for each. The default rates are
// these numbers.
struct EntryKind {
  const char* type;
  int64_t ratio;
};
constexpr EntryKind kEntryKinds[] = {{kWindowAlone, 0}, {kChosenEntries, 4}, {kAllEntries, 128}};

const EntryKind* FindEntryKind(JsonValue type) {
  const auto* kind = std::find_if(std::begin(kEntryKinds), std::end(kEntryKinds),
                                  [&](const EntryKind& k) { return type.Is(k.type); });
  return kind == std::end(kEntryKinds) ? nullptr : kind;
}

// Reads kinds by name. Empty if the field is not legal.
std::vector<const EntryKind*> KindsByType(JsonValue types, ConfigFields& fields, size_t layers) {
  std::vector<const EntryKind*> kinds;
  bool legal = types.is_array() && types.size() == layers;
  for (const JsonValue type : types.elements()) {
    kinds.push_back(FindEntryKind(type));
    legal = legal && kinds.back() != nullptr;
  }
  if (legal) return kinds;
  fields.Fail(kLayersSee, fmt::format("legal is a list of {} names, {}, {} or {}", layers,
                                      kWindowAlone, kChosenEntries, kAllEntries));
  return {};
}

// Reads kinds by number; numbers after the last layer's belong to layers that predict further
// tokens.
std::vector<const EntryKind*> KindsByRatio(ConfigFields& fields, size_t layers) {
  std::vector<const EntryKind*> kinds;
  for (const int64_t ratio : fields.Ints(kRatios, 0, kMaxPositions)) {
    const auto* kind = std::find_if(std::begin(kEntryKinds), std::end(kEntryKinds),
                                    [&](const EntryKind& k) { return k.ratio == ratio; });
    if (kind == std::end(kEntryKinds)) break;
    kinds.push_back(kind);
  }
  if (kinds.size() >= layers) {
    kinds.resize(layers);
    return kinds;
  }
  fields.Fail(kRatios, fmt::format("legal is a list of {} numbers or more, 0, 4 or 128", layers));
  return {};
}

// Without either field the first two layers see all entries; after them every second layer has an
// indexer.
std::vector<const EntryKind*> ReadEntryKinds(ConfigFields& fields, HfConfig& config) {
  const size_t layers = config.mixers.size();
  if (const auto types = fields.Find(kLayersSee)) {
    WithoutEffect(fields, {kRatios}, "layer_types is there, too", &config.unused);
    return KindsByType(*types, fields, layers);
  }
  if (fields.Has(kRatios)) return KindsByRatio(fields, layers);
  std::vector<const EntryKind*> kinds;
  for (size_t i = 0; i < layers; ++i) kinds.push_back(&kEntryKinds[i > 2 && i % 2 == 1 ? 1 : 2]);
  return kinds;
}

// The number of positions that an entry of this kind stands for.
int64_t ReadRate(ConfigFields& fields, const EntryKind& kind, const char* key) {
  int64_t rate = kind.ratio;
  if (const auto rates = fields.Find(kRates)) {
    bool legal = rates->is_object();
    for (const JsonMember& m : rates->members()) {
      legal = legal && (m.key.Is(kChosenEntries) || m.key.Is(kAllEntries));
    }
    if (!legal) {
      fields.Fail(kRates,
                  fmt::format("legal is an object with {} and {}", kChosenEntries, kAllEntries));
      return rate;
    }
    ConfigFields inner(*rates, kRates);
    rate = inner.Int(kind.type, 1, kMaxWidth, rate);
    if (!inner.status().ok()) fields.Fail(kRates, std::string(inner.status().message()));
  }
  return fields.Int(key, 1, kMaxWidth, rate);
}

// The number of rotated channels: a field of its own, or a part of the head.
int64_t ReadRotated(ConfigFields& fields, int64_t head_dim) {
  constexpr char kPart[] = "partial_rotary_factor";
  constexpr char kCount[] = "qk_rope_head_dim";
  const double part = fields.Real(kPart, 0, 1, 0.125);
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  const int64_t dim = fields.Has(kPart) ? fields.Int(kCount, rotated, rotated, rotated)
                                        : fields.Int(kCount, 2, head_dim, rotated);
  if (dim < 2 || dim % 2 != 0) {
    fields.Fail(
        fields.Has(kCount) ? kCount : kPart,
        fmt::format("legal is what makes an even number of at least 2 of head_dim ({})", head_dim));
  }
  return dim;
}

void ReadEntryIndexer(ConfigFields& fields, HfConfig& config) {
  IndexerConfig& indexer = config.indexer;
  indexer.heads = static_cast<int>(fields.Int("index_n_heads", 1, kMaxHeads, 64));
  indexer.head_dim = fields.Int("index_head_dim", config.compressed.rope_dim, kMaxHeadDim, 128);
  indexer.top_k = fields.Int("index_topk", 1, kMaxPositions, 512);
  indexer.interleaved = true;
}

}  // namespace

void ReadCompressedAttention(ConfigFields& fields, HfConfig& config) {
  CompressedAttentionConfig& c = config.compressed;
  c.q_rank = fields.Int("q_lora_rank", 1, kMaxWidth);
  c.rope_dim = ReadRotated(fields, config.head_dim);
  c.groups = static_cast<int>(fields.Int("o_groups", 1, config.num_attention_heads));
  c.group_rank = fields.Int("o_lora_rank", 1, kMaxWidth);
  if (config.num_attention_heads % c.groups != 0) {
    fields.Fail("o_groups", fmt::format("legal is a divisor of num_attention_heads ({})",
                                        config.num_attention_heads));
  }
  ReadEntryIndexer(fields, config);
  const int64_t span = fields.Int("sliding_window", 1, kMaxPositions);
  const int64_t chosen = ReadRate(fields, kEntryKinds[1], "compress_rate_csa");
  const int64_t all = ReadRate(fields, kEntryKinds[2], "compress_rate_hca");
  auto mixer = config.mixers.begin();
  for (const EntryKind* kind : ReadEntryKinds(fields, config)) {
    *mixer = {MixerKind::kWindow, span};
    mixer->ignores_index = kind != &kEntryKinds[1];
    if (kind != &kEntryKinds[0]) {
      mixer->kind = MixerKind::kCompressed;
      mixer->rate = mixer->ignores_index ? all : chosen;
    }
    ++mixer;
  }
}

void ReadCompressedRopes(ConfigFields& fields, RopeDefaults defaults, HfConfig& config) {
  defaults.partial =
      static_cast<double>(config.compressed.rope_dim) / static_cast<double>(config.head_dim);
  const auto parameters = fields.Find("rope_parameters");
  const bool apart = parameters && parameters->Find("compress") && parameters->Find("main");
  WindowAttention own;
  own.kv_heads = config.num_key_value_heads;
  own.head_dim = config.head_dim;
  own.sinks = true;
  own.rope.theta = fields.Real(defaults.theta_key, 1, 1e12, defaults.theta);
  own.rope.dim = config.compressed.rope_dim;
  if (apart) own.rope = ReadRopeConfig(fields, defaults, &config.unused, "main");
  defaults.theta_key = "compress_rope_theta";
  defaults.theta = 160000;
  config.rope = ReadRopeConfig(fields, defaults, &config.unused, apart ? "compress" : "");
  if (!apart) config.rope.theta = fields.Real(defaults.theta_key, 1, 1e12, defaults.theta);
  // YaRN's own factor is not applied if none is given.
  if (config.rope.attention_factor == 0) config.rope.attention_factor = 1;
  own.rope.interleaved = config.rope.interleaved = true;
  if (own.rope.dim != config.compressed.rope_dim || config.rope.dim != own.rope.dim) {
    fields.Fail("rope_parameters", "legal is the same part of a head everywhere");
  }
  config.window = own;
}

void ReadHyperConnections(ConfigFields& fields, HfConfig& config) {
  constexpr int64_t kMaxStreams = 64, kMaxIterations = 1000;
  config.hyper.streams = static_cast<int>(fields.Int("hc_mult", 1, kMaxStreams, 4));
  config.hyper.iterations =
      static_cast<int>(fields.Int("hc_sinkhorn_iters", 1, kMaxIterations, 20));
  config.hyper.eps = fields.Real("hc_eps", 0, 1, 1e-6);
}

}  // namespace moert
