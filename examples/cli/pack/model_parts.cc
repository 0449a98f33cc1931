#include "cli/pack/model_parts.h"

#include <algorithm>

#include "absl/strings/match.h"

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
    {".experts.", "routed experts"},
    {".switch_mlp.", "routed experts"},
    {".expert_", "routed experts"},
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
    {"norm", "norms"},
};

const char* PartOf(absl::string_view tensor) {
  for (const Rule& rule : kRules) {
    if (absl::StrContains(tensor, rule.pattern)) return rule.part;
  }
  return "other";
}

}  // namespace

std::vector<ModelPart> ModelParts(const Checkpoint& checkpoint) {
  std::vector<ModelPart> parts;
  for (const TensorInfo& t : checkpoint.tensors()) {
    const char* name = PartOf(t.name);
    auto it = std::find_if(parts.begin(), parts.end(),
                           [&](const ModelPart& p) { return p.name == name; });
    if (it == parts.end()) it = parts.insert(parts.end(), ModelPart{name, 0, 0, {}});
    ++it->tensors;
    it->bytes += t.bytes;
    it->types.insert(std::string(DTypeName(t.dtype)));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const ModelPart& a, const ModelPart& b) { return a.bytes > b.bytes; });
  return parts;
}

}  // namespace moert::cli
