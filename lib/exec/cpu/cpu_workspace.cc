#include "exec/cpu/cpu_workspace.h"

#include <algorithm>
#include <vector>

namespace moert {
namespace {

/// One call serves routed experts of every version, and shared ones, which stay bf16.
std::vector<ExpertFormat> Formats(const ExecutorSize& size, int layer) {
  std::vector<ExpertFormat> formats = {ExpertFormat::Uniform(Scheme{})};
  for (int e = 0; e < size.source->model().layers[layer].num_experts; ++e) {
    for (const int version : size.versions) {
      const ExpertFormat format = size.source->layout(layer, e, version).format;
      if (std::find(formats.begin(), formats.end(), format) == formats.end()) {
        formats.push_back(format);
      }
    }
  }
  return formats;
}

}  // namespace

int64_t CpuWorkspaceBytes(const ExecutorSize& size, int io_threads) {
  const MoeModelSpec& model = size.source->model();
  const int64_t tokens = size.max_tokens;
  int64_t gemm_bytes = 0, call_bytes = 0, hidden = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    const MoeLayerSpec& layer = model.layers[l];
    const int64_t k = layer.routing.top_k;
    const int64_t rows = tokens * (k + 1);  // slots and shared experts
    hidden = std::max(hidden, layer.hidden);
    gemm_bytes = std::max(
        gemm_bytes, size.gemm->WorkspaceBytes(
                        layer.routing.weight_input ? rows : tokens, rows, layer.hidden,
                        std::max(layer.intermediate, layer.shared_intermediate), Formats(size, l)));
    // Outputs by slot; ids, weights and two groupings of each pair; scores and logits of this and
    // the next layer.
    const int64_t outputs = layer.routing.weight_input ? 2 : 1;  // and inputs
    call_bytes =
        std::max(call_bytes, outputs * rows * layer.hidden * 4 + tokens * k * 16 + tokens * 8 +
                                 tokens * int64_t{model.max_experts()} * 16 +
                                 (size.partial_output ? 2 * tokens * layer.hidden * 4 : 0));
  }
  const int64_t input_and_output = 2 * tokens * hidden * 4;
  return gemm_bytes + call_bytes + input_and_output + io_threads * size.source->scratch_bytes();
}

}  // namespace moert
