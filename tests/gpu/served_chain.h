// Steps of an engine that serves misses on the device, eager or replayed from a graph.
#ifndef MOERT_TESTS_GPU_SERVED_CHAIN_H_
#define MOERT_TESTS_GPU_SERVED_CHAIN_H_

#include <dlfcn.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device_step.h"
#include "moert/expert_store.h"
#include "tests/support/catch.h"
#include "tests/support/run_engine.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {

constexpr int64_t kMostRows = 8;

inline SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 64;
  shape.top_k = 8;
  shape.hidden = 128;
  shape.intermediate = 96;
  return shape;
}

/// Driver calls of this thread, by kind: run with LD_PRELOAD=libmoert_driver_counter.so.
inline long long Calls(int kind) {
  using Count = long long (*)(int);
  static const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "moert_driver_calls"));
  REQUIRE(count != nullptr);
  return count(kind);
}

inline EngineOptions Options(const std::string& strategy, double fraction,
                             int64_t most_rows = kMostRows) {
  EngineOptions o;
  o.backend = BackendKind::kCuda;
  o.strategy = strategy;
  o.budget = Budget::Fraction(fraction);
  o.max_tokens_per_forward = most_rows;
  o.host_budget = int64_t{64} << 20;  // holds every record
  return o;
}

/// An engine, and steps through all of its layers, eager or replayed: one layer's output is the
/// next one's input, in place; or, `apart`, each has its own rows, and all outputs are kept.
class Chain {
 public:
  Chain(const std::string& strategy, double fraction, const SyntheticShape& shape = Shape(),
        int64_t most_rows = kMostRows, int64_t host_budget = int64_t{64} << 20, bool apart = false,
        const HardwareProfile& profile = {})
      : shape_(shape),
        most_rows_(most_rows),
        parts_(apart ? shape.layers : 1),
        device_(static_cast<size_t>(parts_ * most_rows * shape.hidden)) {
    EngineOptions options = Options(strategy, fraction, most_rows);
    options.host_budget = host_budget;
    options.profile = profile;
    auto engine = Engine::Create(std::make_shared<SyntheticSource>(shape), options);
    REQUIRE_OK(engine.status());
    engine_ = std::move(*engine);
  }
  ~Chain() {
    cudaStreamSynchronize(device_.stream());
    for (auto& [rows, graph] : graphs_) cudaGraphExecDestroy(graph);
  }
  Engine* engine() { return engine_.get(); }
  cudaStream_t stream() const { return device_.stream(); }

  /// The requests of the steps' rows that follow; empty: nobody says.
  void SetRequests(std::vector<int64_t> requests) { requests_ = std::move(requests); }
  void SetPhase(Phase phase) { phase_ = phase; }
  StepId Begin(int64_t rows) {
    StepInfo info;
    if (!requests_.empty()) info.request_ids = absl::MakeSpan(requests_).first(rows);
    info.phase = phase_;
    info.rows = rows;
    info.stream = device_.stream();
    auto step = engine_->BeginStep(info);
    REQUIRE_OK(step.status());
    return *step;
  }
  void Forward(StepId step, int64_t rows) {
    const int64_t hidden = shape_.hidden;
    const float* from = device_.x();
    float* to = device_.y();
    for (int l = 0; l < shape_.layers; ++l) {
      REQUIRE_OK(engine_->Forward(step, l, {from, DType::kF32, rows, hidden, hidden},
                                  {to, DType::kF32, rows, hidden, hidden}));
      from = parts_ == 1 ? device_.y() : from + rows * hidden;
      if (parts_ > 1) to += rows * hidden;
    }
  }
  /// The same with one routing for all layers, in device memory.
  void ForwardRouted(StepId step, int64_t rows, const int32_t* ids, const float* weights) {
    const int64_t hidden = shape_.hidden;
    const auto pairs = static_cast<size_t>(rows * shape_.top_k);
    RoutedInput routing;
    routing.place = Place::kDevice;
    routing.ids = {ids, pairs};
    routing.weights = {weights, pairs};
    const float* from = device_.x();
    for (int l = 0; l < shape_.layers; ++l) {
      REQUIRE_OK(engine_->ForwardRouted(step, l, {from, DType::kF32, rows, hidden, hidden}, routing,
                                        {device_.y(), DType::kF32, rows, hidden, hidden}));
      from = device_.y();
    }
  }
  /// ids null: routed by the gate.
  void Capture(int64_t rows, const int32_t* ids = nullptr, const float* weights = nullptr) {
    cudaGraph_t graph = nullptr;
    const StepId step = Begin(rows);
    REQUIRE(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    if (ids != nullptr) {
      ForwardRouted(step, rows, ids, weights);
    } else {
      Forward(step, rows);
    }
    REQUIRE(cudaStreamEndCapture(stream(), &graph) == cudaSuccess);
    REQUIRE_OK(engine_->EndStep(step));
    REQUIRE(cudaGraphInstantiate(&graphs_[rows], graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
  }
  void Launch(int64_t rows) { REQUIRE(cudaGraphLaunch(graphs_.at(rows), stream()) == cudaSuccess); }
  void Set(std::vector<float> x) {
    x.resize(static_cast<size_t>(parts_ * most_rows_ * shape_.hidden));
    device_.Set(x);
  }
  std::vector<float> Get(int64_t rows) {
    std::vector<float> y = device_.Get();
    y.resize(static_cast<size_t>(parts_ * rows * shape_.hidden));
    return y;
  }
  std::vector<float> Step(const std::vector<float>& x, int64_t rows, bool replay) {
    const StepId step = Begin(rows);
    Set(x);
    if (replay) {
      Launch(rows);
    } else {
      Forward(step, rows);
    }
    std::vector<float> y = Get(rows);
    REQUIRE_OK(engine_->EndStep(step));
    return y;
  }
  /// Behind steps that come to nothing, until everything late has come.
  EngineStats Stats() {
    for (int i = 0; i < 3; ++i) {
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      REQUIRE_OK(engine_->EndStep(Begin(1)));
    }
    return engine_->stats();
  }

 private:
  const SyntheticShape shape_;
  const int64_t most_rows_;
  const int64_t parts_;  // of the rows: one, or one a layer
  DeviceRowsBuffer device_;
  std::unique_ptr<Engine> engine_;
  std::vector<int64_t> requests_;
  Phase phase_ = Phase::kDecode;
  std::map<int64_t, cudaGraphExec_t> graphs_;
};

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Rows come, go and move; in every third step two are of one request, in every seventh nobody
/// says.
inline std::vector<int64_t> RequestsOf(int step, int64_t rows) {
  if (step % 7 == 6) return {};
  std::vector<int64_t> requests(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    requests[static_cast<size_t>(r)] = 100 + (r + step / 5) % (rows + 3);
  }
  if (step % 3 == 0) requests.front() = requests.back();
  return requests;
}

/// How many of 3 x 40 replayed steps, of one, three and eight rows, have not the bits of `all`.
inline int64_t WrongReplays(Chain* all, Chain* served) {
  int64_t wrong = 0;
  for (const int64_t rows : {1, 3, 8}) {
    served->Capture(rows);
    HiddenProcess process(Shape().hidden, 5 + static_cast<uint64_t>(rows));
    for (int s = 0; s < 40; ++s) {
      const std::vector<float> x = process.Next(rows);
      wrong += !SameBits(served->Step(x, rows, true), all->Step(x, rows, false));
    }
  }
  return wrong;
}

/// Replays so few steps, of two rows, that tools which watch every access are soon through. Returns
/// what they come to; wrong: outputs that are not those of `all`, if there is one.
inline EngineStats FewReplays(Chain* served, Chain* all = nullptr, int64_t* wrong = nullptr) {
  served->Capture(2);
  HiddenProcess process(Shape().hidden, 4);
  for (int s = 0; s < 12; ++s) {
    const std::vector<float> x = process.Next(2);
    served->SetRequests(RequestsOf(s, 2));
    const std::vector<float> y = served->Step(x, 2, true);
    if (all != nullptr) *wrong += !SameBits(y, all->Step(x, 2, false));
  }
  served->SetRequests({});
  return served->Stats();
}

/// [rows, top_k] experts three apart, from a drawn one on; of each row the sixth is nobody.
inline std::vector<int32_t> DrawnExperts(int64_t rows, std::mt19937* rng) {
  std::vector<int32_t> experts;
  for (int64_t t = 0; t < rows; ++t) {
    const auto first = static_cast<int32_t>((*rng)() % 40);
    for (int k = 0; k < Shape().top_k; ++k) experts.push_back(k == 5 ? -1 : first + 3 * k);
  }
  return experts;
}

/// 30 replays of a captured step of so many rows, behind one that took the blocks: no call of the
/// driver that waits, and none that launches but one of the graph a step.
inline void CheckOneLaunchAStep(Chain* served, int64_t rows) {
  constexpr int kSteps = 30;
  const long long waits = Calls(0), launches = Calls(1), graphs = Calls(2);
  const int64_t host_syncs = served->engine()->stats().host_syncs;
  for (int s = 0; s < kSteps; ++s) {
    const StepId step = served->Begin(rows);
    served->Launch(rows);
    REQUIRE_OK(served->engine()->EndStep(step));
  }
  CHECK(Calls(0) == waits);
  CHECK(Calls(1) == launches);
  CHECK(Calls(2) == graphs + kSteps);
  CHECK(served->engine()->stats().host_syncs == host_syncs);
}

/// 150 steps of three rows between which budgets change, some with a lease within: how many outputs
/// are not those of `all`. next(): the rows; replayed(s): whether step s is, where it has no lease.
template <typename Next, typename Replayed>
int64_t WrongWhileBudgetsChange(Chain* all, Chain* served, std::mt19937* rng, const Next& next,
                                const Replayed& replayed) {
  int64_t wrong = 0;
  for (int s = 0; s < 150; ++s) {
    if (s % 5 == 4) {
      const double fraction = 0.05 + 0.9 * static_cast<double>((*rng)() % 100) / 100;
      REQUIRE_OK(served->engine()->SetBudget(Budget::Fraction(fraction)));
    }
    const std::vector<float> x = next();
    const std::vector<float> expected = all->Step(x, 3, false);
    if (s % 7 != 3) {
      wrong += !SameBits(served->Step(x, 3, replayed(s)), expected);
    } else {
      const StepId step = served->Begin(3);
      served->Set(x);
      served->Launch(3);
      wrong += !SameBits(served->Get(3), expected);
      // The host uses the blocks: replays of this step go on without them.
      std::vector<ExpertView> views;
      auto lease = served->engine()->AcquireExperts(step, 1, std::vector<int32_t>{5, 9}, &views);
      REQUIRE_OK(lease.status());
      served->Set(x);
      served->Launch(3);
      wrong += !SameBits(served->Get(3), expected);
      REQUIRE_OK(served->engine()->EndStep(step));
    }
    CHECK(served->engine()->stats().pool_bytes <= served->engine()->memory().pool_bytes());
  }
  return wrong;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_SERVED_CHAIN_H_
