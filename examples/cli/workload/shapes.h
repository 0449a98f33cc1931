// The shapes of published MoE models, for synthetic experts and workloads.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_SHAPES_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/model.h"

namespace moert::cli {

struct Shape {
  std::string name;
  std::string model;  // as published
  MoeModelSpec spec;
  int64_t attention_parameters = 0;  // projections of one layer, for emulated attention
  int64_t kv_bytes = 0;              // of one token in one layer's cache, bf16
  /// Share of the logits' variance that every request has in common (docs/results/workloads.md):
  /// fitted to the published activation density where there is one, else that of Qwen3-30B-A3B.
  double common_share = 0;
  // The other parts of a decoder.
  int heads = 0, kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocabulary = 0;  // 0: the model has other parts than those listed here
  bool qk_norm = false;    // of each head
};

/// "NAME" or "NAME:LAYERS" (so many layers instead of the model's). The error lists the names.
absl::StatusOr<Shape> ParseShape(absl::string_view text);

/// Every shape with all its layers.
std::vector<Shape> AllShapes();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_SHAPES_H_
