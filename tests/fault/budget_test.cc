// The budget holds for everything an engine allocates, not only for what it says of itself: every
// block of the heap is counted, for every strategy, over layers, experts, experts of a token and
// tokens.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fault/inject.h"
#include "fmt/format.h"
#include "moert/engine.h"
#include "moert/source/expert_source.h"
#include "support/catch.h"

namespace moert {
namespace {

struct Shape {
  int layers, experts, top_k;
  int64_t tokens;
};

/// Experts that take nothing until they are read.
class UnheldSource final : public ExpertSource {
 public:
  explicit UnheldSource(const Shape& shape) {
    model_.architecture = "unheld";
    for (int l = 0; l < shape.layers; ++l) {
      MoeLayerSpec layer;
      layer.model_layer = l;
      layer.num_experts = shape.experts;
      layer.hidden = kHidden;
      layer.intermediate = kIntermediate;
      layer.routing.top_k = shape.top_k;
      model_.layers.push_back(layer);
    }
    for (int v = 0; v < 2; ++v) {
      layouts_.push_back(
          *MakeRecordLayout(kHidden, kIntermediate >> v, ExpertFormat::Uniform(Scheme{})));
    }
  }

  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 2; }
  absl::string_view version_name(int v) const override { return v == 0 ? "bf16" : "low"; }
  const RecordLayout& layout(int, int, int v) const override { return layouts_[v]; }
  absl::Status ReadRecord(int layer, int expert, int, absl::Span<std::byte> dst) const override {
    std::memset(dst.data(), 0, dst.size());
    auto* const words = reinterpret_cast<uint16_t*>(dst.data());
    for (size_t i = 0; i < dst.size() / 2; ++i) {
      words[i] = static_cast<uint16_t>(0x3c00 + (i * 7 + layer * 3 + expert) % 128);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    LayerConstants constants;
    constants.gate.resize(model_.layers[layer].num_experts * kHidden);
    for (size_t i = 0; i < constants.gate.size(); ++i) {
      constants.gate[i] = static_cast<float>(i * 2654435761u >> 12 & 1023) / 512 - 1;
    }
    return constants;
  }

  static constexpr int64_t kHidden = 64, kIntermediate = 64;

 private:
  MoeModelSpec model_;
  std::string name_ = "unheld";
  std::vector<RecordLayout> layouts_;
};

/// The most heap that an engine held, and its plan's allowance for that.
struct Held {
  int64_t heap = 0, fixed = 0, policy = 0, peak = 0, budget = 0;
};

void RunSteps(Engine* engine, const Shape& shape) {
  std::vector<float> x(shape.tokens * UnheldSource::kHidden), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 40503 % 2039) / 1024 - 1;
  std::vector<int64_t> requests(shape.tokens);
  fault_arm(FAULT_MALLOC, 0, 0);
  for (int s = 0; s < 6; ++s) {
    const int64_t rows = s % 3 == 0 ? shape.tokens : 1;
    for (int64_t r = 0; r < rows; ++r) requests[r] = s * shape.tokens + r;
    StepInfo info{rows > 1 ? Phase::kPrefill : Phase::kDecode, rows};
    info.request_ids = absl::MakeConstSpan(requests).first(rows);
    const auto step = engine->BeginStep(info);
    REQUIRE(step.ok());
    for (int l = 0; l < shape.layers; ++l) {
      x[0] += 0.125f;
      REQUIRE_OK(engine->Forward(
          *step, l, {x.data(), DType::kF32, rows, UnheldSource::kHidden, UnheldSource::kHidden},
          {y.data(), DType::kF32, rows, UnheldSource::kHidden, UnheldSource::kHidden}));
    }
    REQUIRE_OK(engine->EndStep(*step));
  }
}

Held Measure(const std::string& strategy, const Shape& shape) {
  const auto source = std::make_shared<UnheldSource>(shape);
  EngineOptions options;
  options.strategy = strategy;
  options.max_tokens_per_forward = shape.tokens;
  options.threads = 2;
  options.budget = Budget::Bytes(int64_t{1} << 40);
  const auto plan = Engine::Plan(*source, options);
  REQUIRE_OK(plan.status());
  Held held;
  held.budget = plan->minimum_bytes + 4 * plan->block_bytes;
  options.budget = Budget::Bytes(held.budget);
  fault_arm(FAULT_MALLOC, 0, 0);
  const int64_t before = fault_live_bytes();
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  held.heap = fault_peak_bytes() - before;
  const int64_t outside = 2 * shape.tokens * UnheldSource::kHidden * 4 + shape.tokens * 8;
  RunSteps(engine->get(), shape);
  held.heap = std::max<int64_t>(held.heap, fault_peak_bytes() - before - outside);
  held.fixed = (*engine)->memory().fixed_bytes();
  held.policy = (*engine)->memory().policy_bytes;
  held.peak = (*engine)->stats().peak_bytes;
  return held;
}

constexpr const char* kStrategies[] = {"auto",
                                       "resident",
                                       "on-demand",
                                       "fate",
                                       "fate:percentile=75,eviction=arc",
                                       "fate:scheme=bf16,low=low",
                                       "importance",
                                       "graded:hi=bf16,lo=low",
                                       "graded:hi=bf16,lo=low,standby=1",
                                       "dynaexq:hi=bf16,lo=low,interval_ms=0.001",
                                       "graded:wait=0,hi=bf16,lo=low"};

TEST_CASE("what an engine allocates is in its budget") {
  const Shape shape =
      GENERATE(Shape{1, 1, 1, 1}, Shape{3, 8, 2, 64}, Shape{48, 256, 8, 16}, Shape{4, 1024, 8, 256},
               Shape{48, 1024, 8, 16}, Shape{2, 8192, 8, 4}, Shape{3, 16, 4, 4096});
  for (const char* strategy : kStrategies) {
    const Held held = Measure(strategy, shape);
    const std::string said =
        fmt::format("{} L {} E {} k {} T {}: heap {} of {} fixed (policies {}), peak {} of {}",
                    strategy, shape.layers, shape.experts, shape.top_k, shape.tokens, held.heap,
                    held.fixed, held.policy, held.peak, held.budget);
    INFO(said);
    if (getenv("SHOW") != nullptr) puts(said.c_str());
    CHECK(held.heap <= held.fixed);
    CHECK(held.peak <= held.budget);
  }
}

}  // namespace
}  // namespace moert
