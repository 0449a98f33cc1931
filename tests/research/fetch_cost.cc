// Times a fetch within a CUDA graph: steps of 16 layers whose host kernels read weights, with
// a fetch in every layer and without. Experts are opaque, 128 a layer; a token wants 8 of 120, and
// nearly all are on the device.
//   moert-fetch-cost [STRATEGY ...]   microseconds a layer: median and extremes of 300 replays
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "moert/engine.h"
#include "moert/source/opaque_source.h"
#include "read_kernel.h"

namespace {

using moert::DType, moert::Engine, moert::StepId;

constexpr int kLayers = 16, kExperts = 128, kTopK = 8, kWanted = 120, kHidden = 2048;
constexpr int kBefore = 15, kBehind = 6;  // kernels of a layer, beside its fetch
constexpr int kEager = 60, kWarm = 100, kReplays = 400;
constexpr int64_t kPartBytes = 1 << 16, kRead = 9 << 20;  // of an expert; of a kernel

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "moert-fetch-cost: %s\n", what.c_str());
  std::exit(1);
}
void Must(cudaError_t error) {
  if (error != cudaSuccess) Fail(cudaGetErrorString(error));
}
void Must(const absl::Status& status) {
  if (!status.ok()) Fail(status.ToString());
}
template <typename T>
T* DeviceArray(int64_t count) {
  void* made = nullptr;
  Must(cudaMalloc(&made, static_cast<size_t>(count) * sizeof(T)));
  Must(cudaMemset(made, 0, static_cast<size_t>(count) * sizeof(T)));
  return static_cast<T*>(made);
}

std::unique_ptr<Engine> Open(const std::string& strategy, std::vector<std::byte>* experts) {
  moert::MoeModelSpec spec;
  moert::OpaqueWeights weights;
  experts->resize(kExperts * kPartBytes);
  for (int l = 0; l < kLayers; ++l) {
    moert::MoeLayerSpec layer;
    layer.model_layer = l;
    layer.num_experts = kExperts;
    layer.hidden = kHidden;
    layer.intermediate = 768;
    layer.routing.kind = moert::RoutingKind::kSoftmaxTopK;
    layer.routing.top_k = kTopK;
    spec.layers.push_back(layer);
    moert::OpaquePart part;
    part.bytes = kPartBytes;
    part.memory = experts->data();
    weights.layers.push_back({part, part, part});
  }
  weights.gates = [](const moert::WeightRead& read) {
    std::mt19937 random(static_cast<unsigned>(read.layer));
    std::normal_distribution<float> normal(0, 0.03f);
    std::generate_n(static_cast<float*>(read.dst), kExperts * kHidden,
                    [&] { return normal(random); });
    return absl::OkStatus();
  };
  auto source = moert::MakeOpaqueSource("fetch-cost", spec, std::move(weights));
  Must(source.status());
  moert::EngineOptions options;
  options.backend = moert::BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = moert::Budget::Fraction(0.97);
  options.max_tokens_per_forward = 1;
  options.host_budget = int64_t{2} << 30;
  auto engine =
      Engine::Create(std::shared_ptr<const moert::ExpertSource>(*std::move(source)), options);
  Must(engine.status());
  return *std::move(engine);
}

/// A host's token: its kernels on one stream, fetches on another, as hosts with streams of their
/// own have them.
class Token {
 public:
  explicit Token(Engine* engine) : engine_(engine) {
    for (cudaStream_t* stream : {&host_, &ours_}) {
      Must(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
    }
    Must(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  cudaStream_t stream() const { return ours_; }
  StepId Begin() const {
    moert::StepInfo info;
    info.phase = moert::Phase::kDecode;
    info.stream = ours_;
    const auto step = engine_->BeginStep(info);
    Must(step.status());
    return *step;
  }
  void Set() {
    std::vector<int32_t> ids;
    for (int l = 0; l < kLayers; ++l) {
      std::vector<int32_t> all(kWanted);
      for (int e = 0; e < kWanted; ++e) all[static_cast<size_t>(e)] = e;
      std::shuffle(all.begin(), all.end(), random_);
      ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
    }
    std::vector<float> x(kLayers * kHidden);
    std::generate(x.begin(), x.end(), [&] { return normal_(random_); });
    Must(cudaMemcpy(ids_, ids.data(), ids.size() * sizeof ids[0], cudaMemcpyHostToDevice));
    Must(cudaMemcpy(x_, x.data(), x.size() * sizeof x[0], cudaMemcpyHostToDevice));
  }
  void Run(StepId step, bool fetches) {
    Order(ours_, host_);
    for (int l = 0; l < kLayers; ++l) {
      Kernels(kBefore);
      if (fetches) Fetch(step, l);
      Kernels(kBehind);
      if (!fetches) continue;
      Order(host_, ours_);
      Must(engine_->ReleaseFetched(step, l));
    }
    Order(host_, ours_);
  }

 private:
  void Order(cudaStream_t first, cudaStream_t then) const {
    Must(cudaEventRecord(event_, first));
    Must(cudaStreamWaitEvent(then, event_, 0));
  }
  void Kernels(int count) {
    for (int i = 0; i < count; ++i, at_ = (at_ + kRead) % (20 * kRead)) {
      Must(moert::research::LaunchRead(weights_ + at_, kRead, sink_, host_));
    }
  }
  void Fetch(StepId step, int layer) const {
    moert::FetchInput input;
    input.place = moert::Place::kDevice;
    input.ids = {ids_ + layer * kTopK, kTopK};
    input.slot_ids = {slots_ + layer * kTopK, kTopK};
    input.hidden = {x_ + layer * kHidden, DType::kF32, 1, kHidden, kHidden};
    moert::SlotView view;
    Order(host_, ours_);
    Must(engine_->Fetch(step, layer, input, &view));
    Order(ours_, host_);
  }

  Engine* const engine_;
  cudaStream_t host_ = nullptr, ours_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int32_t* const ids_ = DeviceArray<int32_t>(kLayers * kTopK);
  int32_t* const slots_ = DeviceArray<int32_t>(kLayers * kTopK);
  float* const x_ = DeviceArray<float>(kLayers * kHidden);
  float* const sink_ = DeviceArray<float>(1);
  const std::byte* const weights_ = DeviceArray<std::byte>(20 * kRead);
  int64_t at_ = 0;
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;
};

void Measure(const std::string& strategy, bool fetches) {
  std::vector<std::byte> experts;
  const auto engine = Open(strategy, &experts);
  Token token(engine.get());
  for (int s = 0; s < kEager; ++s) {
    token.Set();
    const StepId step = token.Begin();
    token.Run(step, fetches);
    Must(engine->EndStep(step));
    Must(cudaDeviceSynchronize());
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t recording = nullptr;
  const StepId recorded = token.Begin();
  Must(cudaStreamBeginCapture(token.stream(), cudaStreamCaptureModeRelaxed));
  token.Run(recorded, fetches);
  Must(cudaStreamEndCapture(token.stream(), &graph));
  Must(engine->EndStep(recorded));
  Must(cudaGraphInstantiate(&recording, graph, 0));
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin));
  Must(cudaEventCreate(&end));
  std::vector<float> us;
  for (int r = 0; r < kReplays; ++r) {
    token.Set();
    const StepId step = token.Begin();
    Must(cudaEventRecord(begin, token.stream()));
    Must(cudaGraphLaunch(recording, token.stream()));
    Must(cudaEventRecord(end, token.stream()));
    Must(engine->EndStep(step));
    Must(cudaDeviceSynchronize());
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, begin, end));
    if (r >= kWarm) us.push_back(ms * 1e3f / kLayers);
  }
  std::sort(us.begin(), us.end());
  std::printf("%s, %s: %.2f (%.2f to %.2f) us a layer\n", strategy.c_str(),
              fetches ? "fetches" : "no fetches", us[us.size() / 2], us.front(), us.back());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> strategies(argv + 1, argv + argc);
  if (strategies.empty()) strategies = {"on-demand", "fate"};
  cudaDeviceProp device;
  Must(cudaGetDeviceProperties(&device, 0));
  std::printf("%s\n", device.name);
  Measure(strategies[0], /*fetches=*/false);
  for (const std::string& strategy : strategies) Measure(strategy, /*fetches=*/true);
}
