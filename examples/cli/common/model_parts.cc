#include "cli/common/model_parts.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "util/printable.h"

namespace moert::cli {
namespace {

struct Rule {
  const char* pattern;
  const char* part;
};

// The first pattern that a name contains decides; tensors of published families, those included
// whose configuration is not read.
constexpr Rule kRules[] = {
    {"shared_expert", "shared experts"},
    {".experts.", kRoutedExperts},
    {".switch_mlp.", kRoutedExperts},
    {".expert_", kRoutedExperts},
    {".feed_forward.router.", "routers"},
    {".ffn.gate.", "routers"},
    {".mixer.gate.", "routers"},
    {".mlp.gate.", "routers"},
    {".mlp.router.", "routers"},
    {".block_sparse_moe.gate.", "routers"},
    {".mlp.", "dense feed-forward"},
    {".feed_forward.", "dense feed-forward"},
    {".ffn.", "dense feed-forward"},
    {".self_attn.", "attention"},
    {".linear_attn.", "attention"},
    {".attn.", "attention"},
    {"embed_tokens", "embedding and head"},
    {"lm_head", "embedding and head"},
    {"embed.weight", "embedding and head"},
    {"head.weight", "embedding and head"},
    {"hc_", "hyper-connections"},
    {"norm", "norms"},
};

void Count(absl::string_view name, const TensorInfo& tensor, std::vector<ModelPart>* parts) {
  auto it = std::find_if(parts->begin(), parts->end(),
                         [&](const ModelPart& p) { return p.name == name; });
  if (it == parts->end()) it = parts->insert(parts->end(), ModelPart{std::string(name), 0, 0, {}});
  ++it->tensors;
  it->bytes += tensor.bytes;
  it->types.insert(TypeName(tensor));
}

void LargestFirst(std::vector<ModelPart>* parts) {
  std::stable_sort(parts->begin(), parts->end(),
                   [](const ModelPart& a, const ModelPart& b) { return a.bytes > b.bytes; });
}

}  // namespace

std::string TypeName(const TensorInfo& tensor) {
  if (tensor.unknown_type.empty()) return std::string(DTypeName(tensor.dtype));
  absl::string_view name = tensor.unknown_type;
  absl::ConsumePrefix(&name, "\"");
  absl::ConsumeSuffix(&name, "\"");
  return util::Printable(name);
}

absl::string_view PartOf(absl::string_view tensor) {
  for (const Rule& rule : kRules) {
    if (absl::StrContains(tensor, rule.pattern)) return rule.part;
  }
  return "other";
}

std::vector<ModelPart> ModelParts(const Checkpoint& checkpoint) {
  std::vector<ModelPart> parts;
  for (const TensorInfo& t : checkpoint.tensors()) Count(PartOf(t.name), t, &parts);
  LargestFirst(&parts);
  return parts;
}

ModelAccount SumParts(absl::Span<const AccountedTensor> account) {
  ModelAccount sums;
  for (const AccountedTensor& a : account) {
    if (a.fate == TensorFate::kUsed) Count(a.what, *a.tensor, &sums.used);
    if (a.fate == TensorFate::kLeftOut) Count(a.what, *a.tensor, &sums.left_out);
    if (a.fate == TensorFate::kUnknown) Count(a.tensor->name, *a.tensor, &sums.unknown);
  }
  for (auto* parts : {&sums.used, &sums.left_out, &sums.unknown}) LargestFirst(parts);
  return sums;
}

int64_t DenseBytes(const TensorInfo& tensor) {
  const bool codes = absl::EndsWith(tensor.name, "weight") ||
                     absl::EndsWith(tensor.name, ".qweight") ||
                     absl::EndsWith(tensor.name, ".weight_packed");
  if (!codes) return tensor.bytes;
  switch (tensor.dtype) {
    case DType::kI8:
    case DType::kF8E4M3:
      return 2 * tensor.bytes;
    case DType::kU8:  // two codes a byte
    case DType::kI32:
      return 4 * tensor.bytes;
    default:
      return tensor.bytes;
  }
}

int64_t HostBytes(const Checkpoint& checkpoint, const HfConfig& config, int64_t tokens) {
  int64_t bytes = 0;
  for (const TensorInfo& t : checkpoint.tensors()) {
    const absl::string_view part = PartOf(t.name);
    const bool engine = part == kRoutedExperts || part == "shared experts" || part == "routers";
    if (!engine) bytes += DenseBytes(t);
  }
  const int64_t kept = std::min(tokens, config.max_position_embeddings);
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    const int64_t channels = config.KvHeads(l) * (config.HeadDim(l) + config.ValueDim(l));
    bytes += 4 * channels * kept;
  }
  return bytes;
}

}  // namespace moert::cli
