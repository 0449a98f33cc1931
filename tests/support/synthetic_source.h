// A small random MoE in memory, with faults on demand.
#ifndef MOERT_TESTS_SUPPORT_SYNTHETIC_SOURCE_H_
#define MOERT_TESTS_SUPPORT_SYNTHETIC_SOURCE_H_

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "moert/source/expert_source.h"
#include "quant/packing.h"

namespace moert::test {

struct SyntheticShape {
  int layers = 3;
  int experts = 8;
  int top_k = 2;
  int64_t hidden = 64;
  int64_t intermediate = 48;
  int64_t shared_intermediate = 32;
  bool shared_gate = true;
  bool renormalize = false;
  // With a low version: the same expert with half of its intermediate channels.
  bool low_version = false;
  RoutingKind kind = RoutingKind::kSoftmaxTopK;
  float gate_scale = 1.0f;  // below 1: flatter router scores
  // Versions beside the low one, each with half of the channels of the one before.
  int lower_versions = 0;
};

class SyntheticSource : public ExpertSource {
 public:
  explicit SyntheticSource(const SyntheticShape& shape, uint64_t seed = 1) {
    model_.architecture = "synthetic";
    for (int l = 0; l < shape.layers; ++l) {
      MoeLayerSpec layer;
      layer.model_layer = l;
      layer.num_experts = shape.experts;
      layer.hidden = shape.hidden;
      layer.intermediate = shape.intermediate;
      layer.shared_intermediate = shape.shared_intermediate;
      layer.shared_gate = shape.shared_gate && shape.shared_intermediate > 0;
      layer.routing.kind = shape.kind;
      layer.routing.top_k = shape.top_k;
      layer.routing.renormalize = shape.renormalize;
      model_.layers.push_back(layer);
    }
    layouts_.push_back(
        *MakeRecordLayout(shape.hidden, shape.intermediate, ExpertFormat::Uniform(Scheme{})));
    for (int v = 1; v <= shape.low_version + shape.lower_versions; ++v) {
      layouts_.push_back(*MakeRecordLayout(shape.hidden, shape.intermediate >> v,
                                           ExpertFormat::Uniform(Scheme{})));
    }
    std::mt19937_64 rng(seed);
    for (const RecordLayout& layout : layouts_) {
      for (int i = 0; i < shape.layers * shape.experts; ++i) {
        records_.push_back(RandomRecord(layout, &rng));
      }
    }
    for (int l = 0; l < shape.layers; ++l) {
      LayerConstants c;
      c.gate = RandomFloats(shape.experts * shape.hidden, shape.gate_scale, &rng);
      if (shape.shared_intermediate > 0) {
        c.shared_layout = *MakeRecordLayout(shape.hidden, shape.shared_intermediate,
                                            ExpertFormat::Uniform(Scheme{}));
        c.shared_expert = RandomRecord(c.shared_layout, &rng);
        if (model_.layers[l].shared_gate) c.shared_gate = RandomFloats(shape.hidden, 0.2f, &rng);
      }
      constants_.push_back(std::move(c));
    }
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return static_cast<int>(layouts_.size()); }
  absl::string_view version_name(int v) const override {
    constexpr absl::string_view kNames[] = {"bf16", "low", "lower", "lowest"};
    return kNames[v];
  }
  const RecordLayout& layout(int, int, int version) const override { return layouts_[version]; }
  /// The first bytes of a complete record of this version.
  const std::vector<std::byte>& record(int layer, int expert, int version) const {
    const int per_layer = model_.layers[0].num_experts;
    return records_[(version * model_.num_layers() + layer) * per_layer + expert];
  }

  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override {
    reads_.fetch_add(1);
    if (broken_.load()) {
      return absl::DataLossError(fmt::format("injected: layer {} expert {}", layer, expert));
    }
    const std::vector<std::byte>& bytes = record(layer, expert, version);
    std::memcpy(dst.data(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    return constants_[layer];
  }

  /// While set, every read fails.
  void set_broken(bool broken) { broken_ = broken; }
  int64_t reads() const { return reads_; }

  static std::vector<float> RandomFloats(int64_t n, float scale, std::mt19937_64* rng) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(n);
    for (float& v : values) v = normal(*rng);
    return values;
  }

 private:
  static std::vector<std::byte> RandomRecord(const RecordLayout& layout, std::mt19937_64* rng) {
    std::vector<std::byte> record(layout.bytes);
    for (const MatrixLayout* m : {&layout.gate, &layout.up, &layout.down}) {
      const std::vector<float> w = RandomFloats(m->rows * m->k, 0.15f, rng);
      (void)PackMatrixBf16(*m, absl::MakeConstSpan(w), record.data());
    }
    return record;
  }

  MoeModelSpec model_;
  std::string name_ = "synthetic";
  std::vector<RecordLayout> layouts_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<LayerConstants> constants_;
  std::atomic<bool> broken_{false};
  mutable std::atomic<int64_t> reads_{0};
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_SYNTHETIC_SOURCE_H_
