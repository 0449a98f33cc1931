// Lives of engines in which calls below the CUDA backend fail: the n-th of a kind, once and with
// all later ones, for n over a life. Afterwards the same engine, or a new one where none was made,
// has the bits of a life without faults, and device memory is back.
#ifndef MOERT_TESTS_GPU_FAULT_LIFE_H_
#define MOERT_TESTS_GPU_FAULT_LIFE_H_

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda_fault.h"
#include "moert/engine.h"
#include "tests/support/catch.h"

namespace moert::test {

/// Outputs of what a host did up to the first call that failed.
struct Outcome {
  absl::Status status;
  std::vector<double> outputs;

  template <typename T>
  void Add(const std::vector<T>& values) {
    outputs.insert(outputs.end(), values.begin(), values.end());
  }
};

struct FaultedLife {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Engine>>()> open;
  /// The same outputs from every engine. Its CUDA calls are the test's own (TestsOwnCalls); the
  /// engine's lie in InEngine.
  std::function<Outcome(Engine*)> drive;
  long dense;              // the step between ns is 1 up to here, then grows with n
  bool open_armed = true;  // false: faults begin when the engine is there
  int warm = 2;            // lives until all that lasts for the process is there
  /// Bound of the outputs' sum of squares: where the CPU may compute some, the last bits are
  /// others.
  double tolerance = 0;
};

/// The engine's calls within a drive: these fail.
template <typename Call>
auto InEngine(const Call& call) {
  const EnginesCalls scope;
  return call();
}

inline Outcome Drive(const FaultedLife& life, Engine* engine) {
  const TestsOwnCalls own;
  return life.drive(engine);
}

inline bool SameBits(const std::vector<double>& a, const std::vector<double>& b, size_t count) {
  return a.size() >= count && b.size() >= count &&
         std::memcmp(a.data(), b.data(), count * sizeof(double)) == 0;
}

inline size_t FreeBytes() {
  size_t free = 0, total = 0;
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  return free;
}

/// Whether `a` begins as `b` does, as exactly as the life's outputs are.
inline bool BeginsAs(const FaultedLife& life, const std::vector<double>& a,
                     const std::vector<double>& b, size_t count) {
  if (life.tolerance == 0 || a.size() < count || b.size() < count) return SameBits(a, b, count);
  double error = 0, all = 0;
  for (size_t i = 0; i < count; ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    all += b[i] * b[i];
  }
  return error <= life.tolerance * all;
}

/// How many calls failed.
inline long LiveWithFault(const FaultedLife& life, CudaFault kind, long n, bool lasting,
                          const std::vector<double>& expected) {
  INFO(life.name << ": " << CudaFaultName(kind) << " " << n << (lasting ? " and later" : ""));
  if (life.open_armed) ArmCudaFault(kind, n, lasting);
  auto engine = life.open();
  if (!life.open_armed) ArmCudaFault(kind, n, lasting);
  Outcome during;
  if (engine.ok()) during = Drive(life, engine->get());
  const long failed = DisarmCudaFault();
  CHECK(BeginsAs(life, during.outputs, expected, during.outputs.size()));
  if (!engine.ok()) engine = life.open();
  REQUIRE_OK(engine.status());
  const Outcome after = Drive(life, engine->get());
  REQUIRE_OK(after.status);
  CHECK(after.outputs.size() == expected.size());
  CHECK(BeginsAs(life, after.outputs, expected, expected.size()));
  CHECK(cudaGetLastError() == cudaSuccess);  // the library says its errors, and leaves none behind
  return failed;
}

inline void SweepCudaFaults(const FaultedLife& life) {
  std::vector<double> expected;
  for (int run = 0; run < life.warm; ++run) {
    auto engine = life.open();
    REQUIRE_OK(engine.status());
    const Outcome outcome = Drive(life, engine->get());
    REQUIRE_OK(outcome.status);
    expected = outcome.outputs;
  }
  const size_t free = FreeBytes();
  long faults = 0, lives = 0;
  for (int kind = 0; kind < static_cast<int>(CudaFault::kKinds); ++kind) {
    for (const bool lasting : {false, true}) {
      for (long n = 1;; n += 1 + n / life.dense) {
        const long failed = LiveWithFault(life, static_cast<CudaFault>(kind), n, lasting, expected);
        ++lives;
        faults += failed > 0;
        if (failed == 0) break;
      }
      INFO(life.name << ": " << CudaFaultName(static_cast<CudaFault>(kind)));
      CHECK(FreeBytes() == free);
    }
  }
  std::printf("%s: %ld lives, %ld with a fault\n", life.name.c_str(), lives, faults);
  INFO(life.name);
  CHECK(faults > 50);
}

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_FAULT_LIFE_H_
