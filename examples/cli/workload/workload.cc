#include "cli/workload/workload.h"

#include <algorithm>
#include <cmath>

#include "cli/workload/random_vectors.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace moert::cli {
namespace {

// Streams of random numbers.
enum Stream : uint64_t {
  kGate = 1,
  kCommon,
  kDomain,
  kRequest,
  kRecent,
  kFresh,
  kSurpriseSize,
  kSurprise,
  kInvisible,
};

constexpr int64_t kShiftTokens = 256;
constexpr int64_t kShiftDomains = 3;

std::vector<float> Vector(uint64_t key, int64_t n) {
  std::vector<float> v(n);
  for (int64_t i = 0; i < n; ++i) v[i] = RandomNormal(key, i);
  return v;
}

/// Four chains of additions, so that compilers can use vectors in strict arithmetic.
float Dot(const float* a, const float* b, int n) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int j = 0; j < 16; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

std::vector<std::string> Workload::Names() {
  return {"steady", "mixed", "shift", "scattered", "uniform"};
}

absl::StatusOr<Workload> Workload::Create(absl::string_view name, const MoeModelSpec& model,
                                          double common_share, uint64_t seed) {
  const std::vector<std::string> names = Names();
  if (std::find(names.begin(), names.end(), std::string(name)) == names.end()) {
    return absl::InvalidArgumentError(fmt::format("unknown workload '{}'; there are: {}",
                                                  std::string(name), fmt::join(names, ", ")));
  }
  WorkloadParameters p;
  p.common = common_share;
  if (name == "scattered" || name == "uniform") p.common = p.domain = p.request = p.recent = 0;
  if (name == "uniform") {
    p.layer_change = 1;
    p.shallow = 0;
    p.surprise = 0;
    p.invisible_correlation = 0;
  }
  int64_t hidden = model.layers.front().hidden;
  for (const MoeLayerSpec& layer : model.layers) hidden = std::min(hidden, layer.hidden);
  p.dims = static_cast<int>(std::min<int64_t>(p.dims, hidden / 2));
  if (p.dims < 1) return absl::InvalidArgumentError("a workload needs a hidden size of 2 or more");
  Workload workload(model, p, seed);
  workload.name_ = std::string(name);
  return workload;
}

Workload::Workload(const MoeModelSpec& model, const WorkloadParameters& parameters, uint64_t seed)
    : model_(model), p_(parameters), seed_(seed) {
  for (size_t l = 0; l < model.layers.size(); ++l) {
    gates_.push_back(
        Vector(MixKey(seed, kGate, l), int64_t{model.layers[l].num_experts} * p_.dims));
    // z = gain * (row . y) / sqrt(dims) has the standard deviation `gain`, as |y|^2 = dims.
    const float scale = static_cast<float>(p_.gain / std::sqrt(p_.dims));
    for (float& g : gates_.back()) g *= scale;
  }
  common_ = Vector(MixKey(seed, kCommon), p_.dims);
}

int64_t Workload::DomainOf(int64_t request, int64_t token) const {
  if (name_ == "mixed") return kShiftDomains + request;
  if (name_ == "shift") return token / kShiftTokens % kShiftDomains;
  return 0;
}

double Workload::LayerCorrelation(int layer) const {
  const double change =
      p_.layer_change * (1 + p_.shallow * std::exp(-static_cast<double>(layer) / p_.shallow_depth));
  return std::clamp(1 - change, 0.0, 1.0);
}

void Workload::BeginStep(absl::Span<const WorkloadRow> rows) {
  const int dims = p_.dims;
  rows_.clear();
  base_.resize(rows.size() * dims);
  fresh_.resize(rows.size() * dims);
  visible_.resize(rows.size() * dims);
  const float decay = static_cast<float>(p_.recent_decay);
  const float renewal = std::sqrt(1 - decay * decay);
  const float common = static_cast<float>(std::sqrt(p_.common));
  const float domain = static_cast<float>(std::sqrt(p_.domain));
  const float own = static_cast<float>(std::sqrt(p_.request));
  const float recent = static_cast<float>(std::sqrt(p_.recent));
  for (size_t r = 0; r < rows.size(); ++r) {
    const int64_t id = rows[r].request;
    Request& request = requests_[id];
    if (request.constant.empty()) {
      request.constant = Vector(MixKey(seed_, kRequest, id), dims);
      request.recent = Vector(MixKey(seed_, kRecent, id, -1), dims);
    }
    const int64_t token = request.tokens++;
    const int64_t domain_id = DomainOf(id, token);
    std::vector<float>& about = domains_[domain_id];
    if (about.empty()) about = Vector(MixKey(seed_, kDomain, domain_id), dims);
    const uint64_t news = MixKey(seed_, kRecent, id, token);
    for (int i = 0; i < dims; ++i) {
      request.recent[i] = decay * request.recent[i] + renewal * RandomNormal(news, i);
      base_[r * dims + i] = common * common_[i] + domain * about[i] + own * request.constant[i] +
                            recent * request.recent[i];
    }
    rows_.push_back({id, token});
  }
  layer_ = -1;
}

void Workload::NextLayer() {
  ++layer_;
  const int dims = p_.dims;
  const float keep = layer_ == 0 ? 0 : static_cast<float>(LayerCorrelation(layer_));
  const float renew = std::sqrt(1 - keep * keep);
  const double fresh_share = 1 - p_.common - p_.domain - p_.request - p_.recent;
  const float share = static_cast<float>(std::sqrt(fresh_share));
  for (size_t r = 0; r < rows_.size(); ++r) {
    const Row& row = rows_[r];
    const uint64_t news = MixKey(seed_, kFresh, row.request, row.token, layer_);
    double h = 0;
    if (p_.surprise > 0) {
      const double z = RandomGaussian(MixKey(seed_, kSurpriseSize, row.request, row.token, layer_));
      h = std::min(0.98, p_.surprise * std::exp(p_.surprise_spread * z));
    }
    const float usual = static_cast<float>(std::sqrt(1 - h));
    const float unusual = static_cast<float>(std::sqrt(h));
    const uint64_t surprise = MixKey(seed_, kSurprise, row.request, row.token, layer_);
    float* fresh = &fresh_[r * dims];
    float* y = &visible_[r * dims];
    for (int i = 0; i < dims; ++i) {
      fresh[i] = keep * fresh[i] + renew * RandomNormal(news, i);
      y[i] = usual * (base_[r * dims + i] + share * fresh[i]);
    }
    if (h > 0) {
      for (int i = 0; i < dims; ++i) y[i] += unusual * RandomNormal(surprise, i);
    }
    // As after the RMS norm.
    const float scale = std::sqrt(static_cast<float>(dims) / Dot(y, y, dims));
    for (int i = 0; i < dims; ++i) y[i] *= scale;
  }
}

void Workload::Hidden(float* out, ThreadPool* pool) {
  const int64_t hidden = model_.layers[layer_].hidden;
  const int64_t rest = hidden - p_.dims;
  const float visible =
      static_cast<float>(std::sqrt(p_.visible_energy * static_cast<double>(hidden) / p_.dims));
  const float invisible = static_cast<float>(
      std::sqrt((1 - p_.visible_energy) * static_cast<double>(hidden) / static_cast<double>(rest)));
  // Continues from the layer before only if that was made too, and is as wide.
  const bool continues = layer_ > 0 && invisible_layer_ == layer_ - 1 &&
                         invisible_.size() == rows_.size() * static_cast<size_t>(rest);
  const float keep = continues ? static_cast<float>(p_.invisible_correlation) : 0;
  const float renew = std::sqrt(1 - keep * keep);
  invisible_.resize(rows_.size() * rest);
  const auto make = [&](int64_t r, int) {
    const uint64_t news = MixKey(seed_, kInvisible, rows_[r].request, rows_[r].token, layer_);
    float* x = out + r * hidden;
    float* o = &invisible_[r * rest];
    for (int i = 0; i < p_.dims; ++i) x[i] = visible * visible_[r * p_.dims + i];
    for (int64_t i = 0; i < rest; ++i) {
      o[i] = (keep == 0 ? 0 : keep * o[i]) + renew * RandomNormal(news, i);
      x[p_.dims + i] = invisible * o[i];
    }
  };
  const auto rows = static_cast<int64_t>(rows_.size());
  if (pool != nullptr) {
    pool->Run(rows, make);
  } else {
    for (int64_t r = 0; r < rows; ++r) make(r, 0);
  }
  invisible_layer_ = layer_;
}

void Workload::Logits(int layer, float* out) const {
  const std::vector<float>& gate = gates_[layer];
  const int experts = model_.layers[layer].num_experts;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (int e = 0; e < experts; ++e) {
      out[r * experts + e] = Dot(&gate[e * p_.dims], &visible_[r * p_.dims], p_.dims);
    }
  }
}

std::vector<float> Workload::Gate(int layer) const {
  const int64_t hidden = model_.layers[layer].hidden;
  const int experts = model_.layers[layer].num_experts;
  const float scale =
      static_cast<float>(1 / std::sqrt(p_.visible_energy * static_cast<double>(hidden) / p_.dims));
  std::vector<float> gate(experts * hidden, 0.0f);
  for (int e = 0; e < experts; ++e) {
    for (int i = 0; i < p_.dims; ++i) {
      gate[e * hidden + i] = scale * gates_[layer][e * p_.dims + i];
    }
  }
  return gate;
}

}  // namespace moert::cli
