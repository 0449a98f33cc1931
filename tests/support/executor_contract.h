// The promises of every executor, whatever it computes on. A backend's tests run it over their own
// matrices: CheckExecutorContract(options, &matrices).
#ifndef MOERT_TESTS_SUPPORT_EXECUTOR_CONTRACT_H_
#define MOERT_TESTS_SUPPORT_EXECUTOR_CONTRACT_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "exec/backend.h"
#include "store/block_pool.h"
#include "store/residency/cache_policy.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_source.h"

namespace moert::test {

/// fp32 matrices where an executor reads and writes them.
class Matrices {
 public:
  virtual ~Matrices() = default;
  virtual void* stream() const { return nullptr; }
  /// One input and one output of rows x cols; `x` becomes the input.
  virtual void Set(const std::vector<float>& x, int64_t rows, int64_t cols, ExecutorCall* call) = 0;
  /// The output, when everything on the stream has ended.
  virtual std::vector<float> Get() = 0;
};

/// An executor and what it borrows: every expert of a source in the fast tier.
class ExecutorRig {
 public:
  static constexpr int64_t kTokens = 5;

  ExecutorRig(const EngineOptions& options, const SyntheticSource* source)
      : source_(source), constants_(*ModelConstants::Read(*source)) {
    const MoeModelSpec& model = source->model();
    backend_ = *MakeBackend(options);
    REQUIRE(backend_->Check(*source, {0}).ok());
    pool_ = *CreateThreadPool(backend_->Threads(false));
    gemm_ = *MixedGroupGemm::Create(pool_.get(), "auto", ActivationNumerics::kBF16);
    router_ = *Router::Create(&model, constants_.routers(), pool_.get());
    const int64_t blocks = model.num_layers() * model.layers[0].num_experts;
    std::vector<std::unique_ptr<BlockPool>> pools;
    pools.push_back(*backend_->MakePool({source->layout(0, 0, 0).bytes + kRecordAlignment, blocks},
                                        blocks, &budget_));
    store_ = std::make_unique<VersionedStore>(
        source, std::vector<ServedVersion>{{0, 0}}, std::move(pools),
        *backend_->MakeTransfers(source, &clock_, &profile_), lru_.get());
    ExecutorParts parts;
    parts.source = source;
    parts.versions = {0};
    parts.max_tokens = kTokens;
    parts.constants = &constants_;
    parts.profile = &profile_;
    parts.router = router_.get();
    parts.gemm = gemm_.get();
    parts.pool = pool_.get();
    executor_ = *backend_->MakeExecutor(parts);
    PolicyContext context;
    context.model = &model;
    for (context.layer = 0; context.layer < model.num_layers(); ++context.layer) {
      for (int e = 0; e < model.layers[context.layer].num_experts; ++e) {
        REQUIRE(store_->StartLoad({context.layer, e}, 0, LoadReason::kBackground, context));
      }
    }
    while (store_->Wait()) {
    }
  }

  Executor* executor() const { return executor_.get(); }
  const MoeLayerSpec& layer(int l) const { return source_->model().layers[l]; }
  /// The experts that a routing uses.
  std::vector<ReadyExpert> Ready(int layer, const RoutingResult& routing) const {
    std::vector<ReadyExpert> ready;
    for (int32_t e = 0; e < routing.num_experts; ++e) {
      if (routing.counts[e] > 0) ready.push_back({e, store_->Latest({layer, e})});
    }
    return ready;
  }
  RoutingRequest Request(int layer, bool next_gate) const {
    RoutingRequest request;
    request.residency = store_->Layer(layer);
    request.store = store_.get();
    request.next_gate = next_gate;
    return request;
  }

 private:
  const SyntheticSource* source_;
  ModelConstants constants_;
  HardwareProfile profile_;
  WallClock clock_;
  BudgetTracker budget_{int64_t{1} << 30};
  const std::unique_ptr<CachePolicy> lru_ = MakeCachePolicy({});
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<MixedGroupGemm> gemm_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<VersionedStore> store_;
  std::unique_ptr<Executor> executor_;
};

/// Multiplies the experts of a routing in so many batches, and combines.
inline void MultiplyInBatches(const ExecutorRig& rig, const ExecutorCall& call,
                              const RoutingResult& routing, size_t batches) {
  const std::vector<ReadyExpert> ready = rig.Ready(call.layer, routing);
  REQUIRE(ready.size() >= batches);
  for (size_t b = 0; b < batches; ++b) {
    const size_t begin = ready.size() * b / batches, end = ready.size() * (b + 1) / batches;
    REQUIRE(rig.executor()
                ->Multiply(call, routing, absl::MakeConstSpan(ready).subspan(begin, end - begin),
                           b == 0)
                .ok());
  }
  REQUIRE(rig.executor()->Combine(call, routing).ok());
}

inline void CheckExecutorContract(const EngineOptions& options, Matrices* matrices) {
  const SyntheticSource source(SyntheticShape{});
  const ExecutorRig rig(options, &source);
  Executor* const executor = rig.executor();
  constexpr int kLayer = 1;
  constexpr int64_t kTokens = ExecutorRig::kTokens;
  const int64_t hidden = rig.layer(kLayer).hidden;
  std::mt19937_64 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(kTokens * hidden);
  for (float& v : x) v = normal(rng);
  ExecutorCall call;
  call.layer = kLayer;
  call.tokens = kTokens;
  call.stream = matrices->stream();
  std::vector<float> first;
  RoutingResult routing;
  const auto is_first = [&] {
    const std::vector<float> y = matrices->Get();
    if (first.empty()) first = y;
    return y.size() == x.size() &&
           std::memcmp(y.data(), first.data(), y.size() * sizeof(float)) == 0;
  };

  // An output does not depend on the batches that experts were multiplied in.
  for (const size_t batches : {1, 2, 3}) {
    INFO(batches << " batches");
    matrices->Set(x, kTokens, hidden, &call);
    REQUIRE(executor->Check(call, rig.layer(kLayer), false).ok());
    REQUIRE(executor->Route(call, rig.Request(kLayer, false), &routing).ok());
    CHECK(routing.next_scores.empty());
    MultiplyInBatches(rig, call, routing, batches);
    CHECK(is_first());
  }
  CHECK(std::all_of(first.begin(), first.end(), [](float v) { return v == v; }));
  CHECK(std::any_of(first.begin(), first.end(), [](float v) { return v != 0; }));

  // Nor on whether the next layer is scored beside.
  matrices->Set(x, kTokens, hidden, &call);
  RoutingResult scored;
  REQUIRE(executor->Route(call, rig.Request(kLayer, true), &scored).ok());
  CHECK(scored.next_scores.size() ==
        static_cast<size_t>(kTokens * rig.layer(kLayer + 1).num_experts));
  CHECK(scored.ids == routing.ids);
  CHECK(scored.weights == routing.weights);
  MultiplyInBatches(rig, call, scored, 1);
  CHECK(is_first());

  // A routing that is given is executed as one that was made.
  matrices->Set(x, kTokens, hidden, &call);
  REQUIRE(executor->SetRouting(call, routing).ok());
  MultiplyInBatches(rig, call, routing, 2);
  CHECK(is_first());

  // Matrices that do not fit are refused.
  ExecutorCall bad = call;
  bad.hidden.rows = kTokens - 1;
  CHECK(executor->Check(bad, rig.layer(kLayer), false).code() ==
        absl::StatusCode::kInvalidArgument);
}

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_EXECUTOR_CONTRACT_H_
