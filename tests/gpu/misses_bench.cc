// What a miss costs where the caller's thread serves it ("split") and where the device waits for
// the engine's ("wait"): time of a decode step a layer, and how much of it the caller was held.
//   gpu.misses_bench [steps [strategy...]]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fmt/format.h"
#include "moert/engine.h"
#include "moert/scheme.h"
#include "tests/support/run_engine.h"

namespace moert::test {
namespace {

struct Shape {
  const char* name;
  int layers, experts, top_k;
  int64_t hidden, intermediate;
  const char* scheme;
};

/// Records of zeros: how long things take does not depend on what is in them.
class EmptySource final : public ExpertSource {
 public:
  explicit EmptySource(const Shape& shape) : name_(shape.name) {
    layout_ = *MakeRecordLayout(shape.hidden, shape.intermediate,
                                ExpertFormat::Uniform(*Scheme::Parse(shape.scheme)));
    model_.architecture = "synthetic";
    std::mt19937_64 rng(1);
    std::normal_distribution<float> normal(0, 0.05f);
    for (int l = 0; l < shape.layers; ++l) {
      MoeLayerSpec layer;
      layer.model_layer = l;
      layer.num_experts = shape.experts;
      layer.hidden = shape.hidden;
      layer.intermediate = shape.intermediate;
      layer.routing.top_k = shape.top_k;
      layer.routing.renormalize = true;
      model_.layers.push_back(layer);
      gates_.emplace_back(shape.experts * shape.hidden);
      for (float& v : gates_.back()) v = normal(rng);
    }
  }
  const MoeModelSpec& model() const override { return model_; }
  const std::string& name() const override { return name_; }
  int num_versions() const override { return 1; }
  absl::string_view version_name(int) const override { return "only"; }
  const RecordLayout& layout(int, int, int) const override { return layout_; }
  absl::Status ReadRecord(int, int, int, absl::Span<std::byte> dst) const override {
    std::memset(dst.data(), 0, static_cast<size_t>(layout_.bytes));
    return absl::OkStatus();
  }
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const override {
    LayerConstants c;
    c.gate = gates_[layer];
    return c;
  }

 private:
  std::string name_;
  MoeModelSpec model_;
  RecordLayout layout_;
  std::vector<std::vector<float>> gates_;
};

double Us(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - since)
      .count();
}

int Run(const std::shared_ptr<EmptySource>& source, const std::string& strategy, double share,
        int64_t rows, const char* misses, bool graph, int steps) {
  setenv("MOERT_CUDA_MISSES", misses, 1);
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(share);
  options.max_tokens_per_forward = rows;
  auto engine = Engine::Create(source, options);
  if (!engine.ok()) {
    fmt::print("{}\n", engine.status().ToString());
    return 1;
  }
  const int layers = source->model().num_layers();
  const int64_t hidden = source->model().layers[0].hidden;
  const size_t bytes = static_cast<size_t>(rows * hidden) * 4;
  void *x = nullptr, *y = nullptr;
  cudaStream_t stream = nullptr;
  cudaMalloc(&x, bytes);
  cudaMalloc(&y, bytes);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  HiddenProcess process(hidden, 5);
  StepInfo info;
  info.phase = Phase::kDecode;
  info.rows = rows;
  info.stream = stream;
  cudaGraphExec_t executable = nullptr;
  std::vector<double> step_us, held_us;
  EngineStats before;
  const int warm = steps / 2;
  for (int s = 0; s < warm + steps; ++s) {
    const std::vector<float> in = process.Next(rows);
    cudaMemcpy(x, in.data(), bytes, cudaMemcpyHostToDevice);
    if (s == warm) before = (*engine)->stats();
    const auto begin = std::chrono::steady_clock::now();
    auto step = (*engine)->BeginStep(info);
    double held = 0;
    const bool capture = graph && s == warm - 1;
    if (capture) cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (executable != nullptr) {
      cudaGraphLaunch(executable, stream);
      held = Us(begin);
    } else {
      for (int l = 0; l < layers; ++l) {
        const auto call = std::chrono::steady_clock::now();
        const absl::Status status =
            (*engine)->Forward(*step, l, {x, DType::kF32, rows, hidden, hidden},
                               {y, DType::kF32, rows, hidden, hidden});
        if (!status.ok()) {
          fmt::print("{}\n", status.ToString());
          return 1;
        }
        held += Us(call);
      }
    }
    if (capture) {
      cudaGraph_t g = nullptr;
      cudaStreamEndCapture(stream, &g);
      if (cudaGraphInstantiate(&executable, g, 0) != cudaSuccess) return 1;
    }
    const absl::Status ended = (*engine)->EndStep(*step);
    cudaStreamSynchronize(stream);
    if (!ended.ok()) {
      fmt::print("{}\n", ended.ToString());
      return 1;
    }
    if (s < warm) continue;
    step_us.push_back(Us(begin) / layers);
    held_us.push_back(held / layers);
  }
  const EngineStats stats = StatsSince((*engine)->stats(), before);
  std::sort(step_us.begin(), step_us.end());
  std::sort(held_us.begin(), held_us.end());
  fmt::print(
      "{:<12} {:<31} budget {:3.0f}%  rows {}  {:<5}{:<6}  layer {:7.1f} us (p10 {:.1f}, p90 "
      "{:.1f}), caller held {:6.1f} us; loads a layer {:.2f} of {:.2f} experts, on the CPU {:.2f}, "
      "host waits a layer {:.2f}, replaced {:.3f} of all slots\n",
      source->name(), strategy, 100 * share, rows, misses, graph ? " graph" : "",
      step_us[step_us.size() / 2], step_us[step_us.size() / 10], step_us[step_us.size() * 9 / 10],
      held_us[held_us.size() / 2], static_cast<double>(stats.loads) / (steps * layers),
      static_cast<double>(stats.lookups) / (steps * layers),
      static_cast<double>(stats.cpu_computed) / (steps * layers),
      static_cast<double>(stats.host_syncs) / (steps * layers),
      static_cast<double>(stats.slots_substituted) / static_cast<double>(stats.slots));
  if (executable != nullptr) cudaGraphExecDestroy(executable);
  engine->reset();
  cudaStreamDestroy(stream);
  cudaFree(x);
  cudaFree(y);
  return 0;
}

int Main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 200;
  std::vector<std::string> strategies(argv + std::min(argc, 2), argv + argc);
  if (strategies.empty()) {
    strategies = {"on-demand", "fate", "hybrimoe-like", "importance:alpha=0.3,balancer=0"};
  }
  if (!CudaStatus().ok()) return 77;
  for (const Shape& shape : {Shape{"qwen3-30b-w4", 8, 128, 8, 2048, 768, "w4a16_g128"},
                             Shape{"qwen3-30b", 4, 128, 8, 2048, 768, "bf16"}}) {
    const auto source = std::make_shared<EmptySource>(shape);
    for (const std::string& strategy : strategies) {
      // Rules of other routings are not captured.
      const int modes = strategy.find("importance") == std::string::npos ? 3 : 2;
      for (const double share : {0.5, 0.9}) {
        for (const int64_t rows : {1, 4}) {
          for (int mode = 0; mode < modes; ++mode) {
            if (Run(source, strategy, share, rows, mode == 0 ? "split" : "wait", mode == 2,
                    steps) != 0) {
              return 1;
            }
          }
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace moert::test

int main(int argc, char** argv) { return moert::test::Main(argc, argv); }
