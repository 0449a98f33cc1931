#include "cli/workload/shapes.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "fmt/format.h"

namespace moert::cli {
namespace {

// One row a model, from its published config.json. "Shared" is the total width of the shared
// experts; "first" counts the dense layers in front, which are no MoE layers.
struct Row {
  const char* name;
  const char* model;
  int layers;
  int first;
  int experts;
  int top_k;
  int64_t hidden;
  int64_t intermediate;
  int64_t shared;
  bool shared_gate;
  RoutingKind kind;
  bool renormalize;
  int heads, kv_heads;
  int64_t head_dim;
  double common_share;
  int64_t vocabulary = 0;
  bool qk_norm = false;
  int groups = 8;  // of experts, of which half are chosen, where routing is grouped
  void (*besides)(MoeLayerSpec*) = nullptr;  // what else its layers have
};

void GptOss(MoeLayerSpec* layer) {
  layer->activation.alpha = 1.702f;
  layer->activation.limit = 7;
  layer->activation.up_offset = 1;
  layer->expert_bias = layer->routing.logit_bias = true;
}
void Llama4(MoeLayerSpec* layer) { layer->routing.weight_input = true; }

constexpr auto kSoftmax = RoutingKind::kSoftmaxTopK;
constexpr double kDefaultShare = 0.285;

constexpr Row kRows[] = {
    {"qwen1.5-moe", "Qwen1.5-MoE-A2.7B", 24, 0, 60, 4, 2048, 1408, 5632, true, kSoftmax, false,  //
     16, 16, 128, kDefaultShare, 151936},
    {"deepseek-moe-16b", "deepseek-moe-16b-base", 27, 1, 64, 6, 2048, 1408, 2816, false, kSoftmax,
     false, 16, 16, 128, kDefaultShare},
    {"deepseek-v2-lite", "DeepSeek-V2-Lite", 26, 1, 64, 6, 2048, 1408, 2816, false, kSoftmax, false,
     16, 8, 128, 0.35},
    {"xverse-moe", "XVERSE-MoE-A4.2B", 28, 0, 64, 6, 2560, 1728, 3456, false, kSoftmax, true,  //
     32, 32, 80, kDefaultShare},
    {"qwen2-57b", "Qwen2-57B-A14B", 28, 0, 64, 8, 3584, 2560, 20480, true, kSoftmax, false,  //
     28, 4, 128, kDefaultShare, 151936},
    {"qwen3-30b", "Qwen3-30B-A3B", 48, 0, 128, 8, 2048, 768, 0, false, kSoftmax, true,  //
     32, 4, 128, 0.285, 151936, true},
    {"qwen3-235b", "Qwen3-235B-A22B", 94, 0, 128, 8, 4096, 1536, 0, false, kSoftmax, true,  //
     64, 4, 128, 0.285, 151936, true},
    {"qwen3.6-35b", "Qwen3.6-35B-A3B", 40, 0, 256, 8, 2048, 512, 512, true, kSoftmax, true,  //
     16, 2, 256, 0.13},
    {"glm-4.5-air", "GLM-4.5-Air", 45, 1, 128, 8, 4096, 1408, 1408, false,
     RoutingKind::kSigmoidGrouped, true, 96, 8, 128, kDefaultShare, 0, false, 1},
    {"qwen3-next-80b", "Qwen3-Next-80B-A3B", 48, 0, 512, 10, 2048, 512, 512, true, kSoftmax, true,
     16, 2, 256, 0.13},
    {"mixtral", "Mixtral-8x7B", 32, 0, 8, 2, 4096, 14336, 0, false, RoutingKind::kTopKSoftmax,
     false, 32, 8, 128, kDefaultShare, 32000},
    {"phi-3.5-moe", "Phi-3.5-MoE", 32, 0, 16, 2, 4096, 6400, 0, false, RoutingKind::kSparseMixer,
     false, 32, 8, 128, kDefaultShare},
    {"deepseek-v3", "DeepSeek-V3", 58, 3, 256, 8, 7168, 2048, 2048, false,
     RoutingKind::kSigmoidGrouped, true, 128, 8, 128, kDefaultShare},
    {"gpt-oss-20b",
     "gpt-oss-20b",
     24,
     0,
     32,
     4,
     2880,
     2880,
     0,
     false,
     RoutingKind::kTopKSoftmax,
     false,
     64,
     8,
     64,
     kDefaultShare,
     201088,
     false,
     8,
     GptOss},
    {"gpt-oss-120b",
     "gpt-oss-120b",
     36,
     0,
     128,
     4,
     2880,
     2880,
     0,
     false,
     RoutingKind::kTopKSoftmax,
     false,
     64,
     8,
     64,
     kDefaultShare,
     201088,
     false,
     8,
     GptOss},
    {"llama4-scout",
     "Llama-4-Scout-17B-16E",
     48,
     0,
     16,
     1,
     5120,
     8192,
     8192,
     false,
     RoutingKind::kTopKSigmoid,
     false,
     40,
     8,
     128,
     kDefaultShare,
     202048,
     false,
     8,
     Llama4},
    {"tiny", "tiny-moe", 8, 0, 32, 4, 128, 64, 128, true, kSoftmax, false,  //
     4, 2, 32, kDefaultShare, 4096},
};

Shape Make(const Row& row, int layers) {
  Shape shape;
  shape.name = row.name;
  shape.model = row.model;
  shape.attention_parameters = row.hidden * row.head_dim * 2 * (row.heads + row.kv_heads);
  shape.kv_bytes = 2 * row.kv_heads * row.head_dim * 2;
  shape.common_share = row.common_share;
  shape.heads = row.heads;
  shape.kv_heads = row.kv_heads;
  shape.head_dim = row.head_dim;
  shape.vocabulary = row.vocabulary;
  shape.qk_norm = row.qk_norm;
  shape.spec.architecture = row.name;
  for (int l = 0; l < layers; ++l) {
    MoeLayerSpec layer;
    layer.model_layer = row.first + l;
    layer.num_experts = row.experts;
    layer.hidden = row.hidden;
    layer.intermediate = row.intermediate;
    layer.shared_intermediate = row.shared;
    layer.shared_gate = row.shared_gate;
    layer.routing.kind = row.kind;
    layer.routing.top_k = row.top_k;
    layer.routing.renormalize = row.renormalize;
    if (row.kind == RoutingKind::kSigmoidGrouped) {
      layer.routing.num_groups = row.groups;
      layer.routing.top_groups = row.groups > 1 ? row.groups / 2 : 1;
      layer.routing.selection_bias = true;
      layer.routing.scaling = 2.5f;
    }
    if (row.besides != nullptr) row.besides(&layer);
    shape.spec.layers.push_back(layer);
  }
  return shape;
}

}  // namespace

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes;
  for (const Row& row : kRows) shapes.push_back(Make(row, row.layers));
  return shapes;
}

absl::StatusOr<Shape> ParseShape(absl::string_view text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::string names;
  for (const Row& row : kRows) {
    if (parts.first != row.name) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
      continue;
    }
    int layers = row.layers;
    if (text.find(':') != absl::string_view::npos &&
        (!absl::SimpleAtoi(parts.second, &layers) || layers < 1 || layers > 1000)) {
      return absl::InvalidArgumentError(
          fmt::format("shape {}: '{}' layers; must be in [1, 1000]", row.name, parts.second));
    }
    return Make(row, layers);
  }
  return absl::InvalidArgumentError(
      fmt::format("unknown shape '{}'; there are: {}", parts.first, names));
}

}  // namespace moert::cli
