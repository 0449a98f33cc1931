// Synthetic gate inputs: a random process of hidden states that routes as trained models do.
// docs/results/workloads.md describes the model, where its numbers come from, and how well they
// fit.
//
// The gate of layer l is a real matrix. It sees a vector of `dims` components of a token (the rest
// of the hidden state is orthogonal to every gate), a sum of independent Gaussian parts:
//
//   y[l] = sqrt(1 - h) * (common + domain + request + recent + fresh[l]) + sqrt(h) * surprise
//
// which differ in how long they last: for all requests, a domain, a request, some tokens (an
// autoregression over tokens), one token (an autoregression over layers, slower to change in deep
// layers), one layer call. Their shares of the variance make popularity skewed, reuse local in
// time, and the next layer predictable, each to the extent that was measured.
#ifndef MOERT_EXAMPLES_CLI_WORKLOAD_WORKLOAD_H_
#define MOERT_EXAMPLES_CLI_WORKLOAD_WORKLOAD_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "moert/model.h"
#include "moert/thread_pool.h"

namespace moert::cli {

/// FROZEN: results made with them are compared over time. A better fit is another set of values
/// under another name, never a change of these.
struct WorkloadParameters {
  // Shares of the variance of what gates see; the rest is fresh for every token.
  double common = 0.285;  // Shape::common_share replaces it
  double domain = 0.20;
  double request = 0.10;
  double recent = 0.15;
  double recent_decay = 0.8;  // of the autoregression, a token
  // fresh[l] = c fresh[l - 1] + ..., c = 1 - layer_change * (1 + shallow * exp(-l / shallow_depth))
  double layer_change = 0.015;
  double shallow = 25;
  double shallow_depth = 2;
  // h is log-normal: its median, and the standard deviation of its logarithm.
  double surprise = 0.0055;
  double surprise_spread = 2.1;
  // The hidden state: energy that gates see, and the layer-to-layer correlation of the rest.
  double visible_energy = 0.3;
  double invisible_correlation = 0.86;
  // Standard deviation of a gate's logits over its experts.
  double gain = 1.75;
  int dims = 128;
};

/// One row of a step: the next token of a request.
struct WorkloadRow {
  int64_t request = 0;
};

/// Not thread-safe. The same seed gives the same gates, requests and tokens, however requests are
/// batched into steps.
class Workload {
 public:
  /// `name`: steady (one domain), mixed (every request a domain of its own), shift (all requests
  /// change their domain every 256 tokens, three domains in turn), scattered (tokens share nothing,
  /// the layers of a token do: the worst case of every cache), uniform (no structure at all: the
  /// worst case of every predictor, too). The error lists them.
  static absl::StatusOr<Workload> Create(absl::string_view name, const MoeModelSpec& model,
                                         double common_share, uint64_t seed);
  static std::vector<std::string> Names();

  /// Begins a step in which each row is the next token of its request; a request's rows of one
  /// step follow each other (prefill).
  void BeginStep(absl::Span<const WorkloadRow> rows);
  /// Moves every row to the next layer, from layer 0 on.
  void NextLayer();

  /// The gates' view of each row in this layer: [rows, dims].
  const std::vector<float>& visible() const { return visible_; }
  /// The full gate input of each row: [rows, hidden], mean square 1. Costs a random number an
  /// element; call it once a layer. With a pool, rows are made side by side: the same numbers.
  void Hidden(float* out, ThreadPool* pool = nullptr);

  /// Logits of `layer` for this step's rows as they are now: [rows, E]. Equal to the gate times
  /// Hidden but for rounding.
  void Logits(int layer, float* out) const;
  /// The gate's matrix: [E, hidden].
  std::vector<float> Gate(int layer) const;

  const WorkloadParameters& parameters() const { return p_; }

 private:
  struct Request {
    int64_t tokens = 0;
    std::vector<float> constant;  // of the request, its own part
    std::vector<float> recent;
  };

  Workload(const MoeModelSpec& model, const WorkloadParameters& parameters, uint64_t seed);
  int64_t DomainOf(int64_t request, int64_t token) const;
  double LayerCorrelation(int layer) const;
  void Compose();

  MoeModelSpec model_;
  WorkloadParameters p_;
  uint64_t seed_;
  std::string name_;
  std::vector<std::vector<float>> gates_;  // [layer][E, dims]
  std::vector<float> common_;
  std::map<int64_t, std::vector<float>> domains_;
  std::map<int64_t, Request> requests_;

  struct Row {
    int64_t request = 0;
    int64_t token = 0;
  };
  std::vector<Row> rows_;
  int layer_ = -1;
  std::vector<float> base_;     // [rows, dims], what does not change over layers
  std::vector<float> fresh_;    // [rows, dims]
  std::vector<float> visible_;  // [rows, dims]
  std::vector<float> invisible_;
  int invisible_layer_ = -2;
};

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_WORKLOAD_WORKLOAD_H_
