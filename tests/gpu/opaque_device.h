// Opaque experts on a device: what a host with a kernel of its own has beside an engine.
#ifndef MOERT_TESTS_GPU_OPAQUE_DEVICE_H_
#define MOERT_TESTS_GPU_OPAQUE_DEVICE_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "device_array.h"
#include "moert/engine.h"
#include "tests/support/catch.h"
#include "tests/support/opaque_fixture.h"
#include "toy_fetch.h"
#include "toy_kernel.h"

namespace moert::test {

inline constexpr int kE = OpaqueModel::kExperts, kK = OpaqueModel::kTopK,
                     kLayers = OpaqueModel::kLayers;
inline constexpr int64_t kAllRecords = 64 << 20;  // a host budget that keeps every record

class Stream {
 public:
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Wait() const { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// The kernel's result for every expert, over all weights in device memory.
class ExpectedOnDevice {
 public:
  explicit ExpectedOnDevice(const OpaqueModel& model) {
    std::vector<int32_t> every(kE);
    for (int e = 0; e < kE; ++e) every[e] = e;
    const DeviceArray<int32_t> ids(every);
    DeviceArray<double> out(kE);
    for (int l = 0; l < kLayers; ++l) {
      std::vector<std::unique_ptr<DeviceArray<std::byte>>> parts;
      ToyWeights weights{};
      for (int p = 0; p < 3; ++p) {
        parts.push_back(std::make_unique<DeviceArray<std::byte>>(model.data[l][p]));
        weights.base[p] = parts[p]->get();
        weights.stride[p] = weights.bytes[p] = OpaqueModel::PartBytes(l, p);
      }
      REQUIRE(LaunchToy(weights, ids.get(), kE, kX, out.get(), nullptr) == cudaSuccess);
      of_layer_.push_back(out.Get());
      // The kernel is the fixture's product.
      for (int e = 0; e < kE; ++e) {
        CHECK(std::abs(of_layer_[l][e] - Expected(model, l, e, kX)) < 1e-9);
      }
    }
  }
  double At(int layer, int32_t id) const { return id < 0 ? -1 : of_layer_[layer][id]; }

 private:
  std::vector<std::vector<double>> of_layer_;
};

inline std::shared_ptr<const ExpertSource> Source(const OpaqueModel& model, OpaqueWeights weights) {
  auto source = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(source.status());
  return *std::move(source);
}

inline EngineOptions OpaqueOptions(const char* strategy, double fraction, int64_t host_budget) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = 8;
  options.host_budget = host_budget;
  return options;
}

/// By default some records are kept, others read again.
inline std::unique_ptr<Engine> Open(std::shared_ptr<const ExpertSource> source,
                                    const char* strategy, double fraction,
                                    int64_t host_budget = 1 << 18) {
  auto engine = Engine::Create(std::move(source), OpaqueOptions(strategy, fraction, host_budget));
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

inline absl::StatusOr<StepId> Begin(Engine* engine, int64_t tokens, const Stream& stream) {
  StepInfo info;
  info.phase = tokens > 1 ? Phase::kPrefill : Phase::kDecode;
  info.rows = tokens;
  info.stream = stream.get();
  return engine->BeginStep(info);
}

/// Some experts are more popular than others, and some tokens want one only.
inline std::vector<int32_t> RandomIds(std::mt19937* random, int64_t tokens) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const auto a = static_cast<int32_t>((*random)() % kE);
    ids.push_back(a);
    ids.push_back((*random)() % 8 == 0 ? -1 : (a + 1 + static_cast<int32_t>((*random)() % 4)) % kE);
  }
  return ids;
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_OPAQUE_DEVICE_H_
