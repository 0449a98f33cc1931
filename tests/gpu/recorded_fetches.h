// Fetches of experts with gates that a host records into a CUDA graph. In every function
// in_engine(f) calls f, which is a call of the engine.
#ifndef MOERT_TESTS_GPU_RECORDED_FETCHES_H_
#define MOERT_TESTS_GPU_RECORDED_FETCHES_H_

#include <vector>

#include "opaque_gated.h"
#include "recorded_graph.h"

namespace moert::test {

/// A recorded step.
class RecordedFetches {
 public:
  /// Records what `layer_calls` enqueues on the stream, in a step of the engine.
  template <typename LayerCalls, typename InEngine = decltype(kPlainly)>
  absl::Status Record(Engine* engine, int64_t tokens, const Stream& stream,
                      const LayerCalls& layer_calls, const InEngine& in_engine = kPlainly) {
    const auto step = in_engine([&] { return Begin(engine, tokens, stream); });
    if (!step.ok()) return step.status();
    absl::Status status = graph_.Record(stream.get(), cudaStreamCaptureModeRelaxed,
                                        [&] { return layer_calls(*step); });
    status.Update(in_engine([&] { return engine->EndStep(*step); }));  // repeats the first error
    return status;
  }
  /// Replays them in a step of its own.
  template <typename InEngine = decltype(kPlainly)>
  absl::Status Replay(Engine* engine, int64_t tokens, const Stream& stream,
                      const InEngine& in_engine = kPlainly) const {
    const auto step = in_engine([&] { return Begin(engine, tokens, stream); });
    if (!step.ok()) return step.status();
    graph_.Launch(stream.get());
    return in_engine([&] { return engine->EndStep(*step); });
  }

  cudaError_t ended() const { return graph_.ended(); }

 private:
  RecordedGraph graph_;
};

/// A token's way through all layers, in memory that every replay reads and writes.
struct GatedToken {
  GatedToken()
      : ids(static_cast<size_t>(kLayers * kK)),
        slots(static_cast<size_t>(kLayers * kK)),
        x(static_cast<size_t>(kLayers * OpaqueModel::kHidden)),
        out(static_cast<size_t>(kLayers * kK)) {}

  void Set(std::mt19937* random) {
    std::vector<float> rows, row;
    chosen.clear();
    for (int l = 0; l < kLayers; ++l) {
      if (l == 0 || (*random)() % 4 == 0) row = RandomRow(random);
      const std::vector<int32_t> best = Chosen(row);
      chosen.insert(chosen.end(), best.begin(), best.end());
      rows.insert(rows.end(), row.begin(), row.end());
    }
    ids.Set(chosen);
    x.Set(rows);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // set on another stream
  }
  template <typename InEngine>
  absl::Status Run(Engine* engine, StepId step, int layer, const Stream& stream,
                   const InEngine& in_engine) const {
    constexpr int64_t kHidden = OpaqueModel::kHidden;
    FetchInput input;
    input.place = Place::kDevice;
    input.ids = {ids.get() + layer * kK, kK};
    input.slot_ids = {slots.get() + layer * kK, kK};
    input.hidden = {x.get() + layer * kHidden, DType::kF32, 1, kHidden, kHidden};
    SlotView view;
    absl::Status status = in_engine([&] { return engine->Fetch(step, layer, input, &view); });
    if (!status.ok()) return status;
    status = CudaOk(LaunchToy(WeightsOf(view), slots.get() + layer * kK, kK, kX,
                              out.get() + layer * kK, stream.get()));
    status.Update(in_engine([&] { return engine->ReleaseFetched(step, layer); }));
    return status;
  }
  template <typename InEngine = decltype(kPlainly)>
  absl::Status RunAll(Engine* engine, StepId step, const Stream& stream,
                      const InEngine& in_engine = kPlainly) const {
    for (int l = 0; l < kLayers; ++l) {
      const absl::Status status = Run(engine, step, l, stream, in_engine);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  int Wrong(const ExpectedOnDevice& expected) const {
    const std::vector<double> got = out.Get();
    int wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      wrong += got[i] != expected.At(static_cast<int>(i) / kK, chosen[i]);
    }
    return wrong;
  }

  std::vector<int32_t> chosen;
  DeviceArray<int32_t> ids, slots;
  DeviceArray<float> x;
  DeviceArray<double> out;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_RECORDED_FETCHES_H_
