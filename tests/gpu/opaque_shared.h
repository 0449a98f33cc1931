// Misses of opaque records that device and CPU share: a host with a kernel of its own, and its
// product on the CPU.
#ifndef MOERT_TESTS_GPU_OPAQUE_SHARED_H_
#define MOERT_TESTS_GPU_OPAQUE_SHARED_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "opaque_device.h"
#include "tests/support/slow_link.h"

namespace moert::test {

inline constexpr int kHidden = OpaqueModel::kHidden;

using Product = std::function<absl::Status(const OpaqueProduct&)>;

/// The product of every expert, and how often each was asked for on the CPU.
class Reference {
 public:
  explicit Reference(const OpaqueModel& model) {
    for (int l = 0; l < kLayers; ++l) {
      for (int e = 0; e < kE; ++e) of_[l][e] = static_cast<float>(Expected(model, l, e, kX));
    }
  }
  float Of(int layer, int expert) const { return of_[layer][expert]; }

  /// Over the bytes that it is given.
  absl::Status Multiply(const OpaqueProduct& job) {
    size_t pair = 0;
    for (const OpaqueProduct::Expert& expert : job.experts) {
      double x = kX;
      for (int p = 0; p < 3; ++p) {
        x = Toy(expert.parts[p], OpaqueModel::PartBytes(job.layer, p), x) * 1e-4;
      }
      for (int64_t i = 0; i < expert.pairs; ++i, ++pair) {
        const float* row = job.x + job.row_of[pair] * job.hidden;
        for (int64_t c = 0; c < job.hidden; ++c) {
          job.out[static_cast<int64_t>(pair) * job.hidden + c] = static_cast<float>(x) * row[c];
        }
        wrong_ += job.weights[pair] != 1.0f;
      }
      ++experts_;
    }
    wrong_ += pair != job.row_of.size() || job.pool->num_threads() < 1;
    return absl::OkStatus();
  }
  int64_t experts() const { return experts_; }
  int64_t wrong() const { return wrong_; }  // what jobs say

 private:
  float of_[kLayers][kE];
  std::atomic<int64_t> experts_{0}, wrong_{0};
};

inline std::shared_ptr<const ExpertSource> SourceOf(const OpaqueModel& model, Product product) {
  OpaqueWeights weights = model.InMemory();
  weights.product = std::move(product);
  return Source(model, std::move(weights));
}

inline EngineOptions SharingOptions(const char* strategy, double fraction) {
  EngineOptions options = OpaqueOptions(strategy, fraction, kAllRecords);
  options.profile = SlowLink();
  return options;
}

/// An engine whose profile has so slow a link that the CPU takes what finds no free slot.
inline std::unique_ptr<Engine> OpenShared(std::shared_ptr<const ExpertSource> source,
                                          const char* strategy, double fraction) {
  auto engine = Engine::Create(std::move(source), SharingOptions(strategy, fraction));
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

/// Device memory of a call.
struct Call {
  explicit Call(int64_t tokens)
      : tokens(tokens),
        ids(static_cast<size_t>(tokens * kK)),
        slots(static_cast<size_t>(tokens * kK)),
        x(static_cast<size_t>(tokens * kHidden)),
        rows(static_cast<size_t>(tokens * kK * kHidden)) {}
  MatrixView Input() const { return {x.get(), DType::kF32, tokens, kHidden, kHidden}; }
  MutableMatrixView Rows() const {
    return {rows.get(), DType::kF32, tokens * kK, kHidden, kHidden};
  }

  const int64_t tokens;
  DeviceArray<int32_t> ids, slots;
  DeviceArray<float> x, rows;
};

/// Fetch, the host's kernel, the CPU's rows. A layer call of a host. in_engine(f) calls f, which is
/// a call of the engine.
template <typename InEngine = decltype(kPlainly)>
absl::Status RunLayer(Engine* engine, StepId step, int layer, const Call& call,
                      const Stream& stream, const InEngine& in_engine = kPlainly) {
  FetchInput input;
  input.place = Place::kDevice;
  input.ids = {call.ids.get(), static_cast<size_t>(call.tokens * kK)};
  input.slot_ids = {call.slots.get(), static_cast<size_t>(call.tokens * kK)};
  input.cpu_rows = call.Input();
  input.any_slot = true;
  SlotView view;
  absl::Status status = in_engine([&] { return engine->Fetch(step, layer, input, &view); });
  if (!status.ok()) return status;
  status =
      CudaOk(LaunchToyRows(WeightsOf(view), call.slots.get(), static_cast<int>(call.tokens * kK),
                           kK, call.x.get(), kHidden, call.rows.get(), stream.get()));
  status.Update(in_engine([&] { return engine->TakeCpuRows(step, layer, call.Rows()); }));
  status.Update(in_engine([&] { return engine->ReleaseFetched(step, layer); }));
  return status;
}

inline void Fill(Call* call, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(call->tokens * kHidden));
  for (float& value : x) value = normal(*random);
  call->x.Set(x);
  call->ids.Set(RandomIds(random, call->tokens));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // filled on another stream
}

/// The largest difference to the products of all experts.
inline double Error(const Call& call, int layer, const Reference& reference) {
  const std::vector<float> rows = call.rows.Get(), x = call.x.Get();
  const std::vector<int32_t> ids = call.ids.Get();
  double worst = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t pair = i / kHidden;
    const float of = ids[pair] < 0 ? 0 : reference.Of(layer, ids[pair]);
    const double error = std::abs(rows[i] - of * x[pair / kK * kHidden + i % kHidden]);
    worst = std::max(worst, std::isnan(rows[i]) ? 1e9 : error);
  }
  return worst;
}

/// Whether the pairs of every token have slots of their own.
inline bool SlotsDiffer(const Call& call) {
  std::vector<int32_t> slots = call.slots.Get();
  const std::vector<int32_t> ids = call.ids.Get();
  for (size_t first = 0; first < slots.size(); first += kK) {
    std::set<int32_t> of_token;
    for (size_t i = first; i < first + kK; ++i) {
      if (ids[i] >= 0 && (slots[i] < 0 || !of_token.insert(slots[i]).second)) return false;
    }
  }
  return true;
}

inline constexpr double kRounding = 1e-5;

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_OPAQUE_SHARED_H_
