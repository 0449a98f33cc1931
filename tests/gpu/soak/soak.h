// A mixed load on one device: what its threads share, and what each of them does.
#ifndef MOERT_TESTS_GPU_SOAK_SOAK_H_
#define MOERT_TESTS_GPU_SOAK_SOAK_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moert/engine.h"
#include "moert/source/opaque_source.h"
#include "tests/support/opaque_fixture.h"
#include "tests/support/synthetic_source.h"

namespace moert::soak {

inline constexpr int64_t kRows = 4;
inline constexpr int kInputs = 8;

struct Counts {
  std::atomic<int64_t> engines{0}, steps{0}, recordings{0}, replays{0}, leases{0}, fetches{0},
      copies{0}, budgets{0}, cancels{0}, failed_reads{0}, refused{0}, wrong{0}, unexplained{0};
};
extern Counts counts;
/// The threads' time is over.
extern std::atomic<bool> stop;

/// Whether a call failed. Counted: refused, cancelled and failed reads are explained by the load.
bool Failed(const absl::Status& status, const char* call);
/// A CUDA call of the program's own.
void Own(cudaError_t error);

test::SyntheticShape Shape();

/// Reads fail now and then while `failing` is set.
class FlakySource final : public test::SyntheticSource {
 public:
  FlakySource() : SyntheticSource(Shape()) {}
  absl::Status ReadRecord(int layer, int expert, int version,
                          absl::Span<std::byte> dst) const override;
  std::atomic<bool> failing{false};

 private:
  mutable std::atomic<unsigned> count_{0};
};

/// Device memory and a stream.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <typename T>
  T* at(size_t index = 0) const {
    return static_cast<T*>(data_) + index;
  }

 private:
  void* data_ = nullptr;
};
class Stream {
 public:
  Stream() { Own(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { Own(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Upload(void* to, const void* from, size_t bytes) const;
  /// Waits.
  void Download(void* to, const void* from, size_t bytes) const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// A strategy whose misses device and CPU share.
inline constexpr const char* kWithCpu = "importance:alpha=0";
absl::StatusOr<std::unique_ptr<Engine>> Open(std::shared_ptr<const ExpertSource> source,
                                             const std::string& strategy, double fraction,
                                             int64_t host_budget);
inline constexpr int64_t kSomeRecords = 1 << 18, kAllRecords = int64_t{64} << 20;

/// Rows for every layer, and what an engine that holds every expert makes of them.
struct Expected {
  std::vector<float> x[kInputs], y[kInputs];
};
Expected ExpectedOutputs();
/// The output of the host's own kernel, [layer][expert].
std::vector<std::vector<double>> ExpectedProducts(const test::OpaqueModel& model);

// The threads' work until `stop`.

/// Eager steps, between whose layers come leases, hints, budgets, cancellations and questions.
void RunSteps(Engine* engine, const test::SyntheticSource& records, const Expected& expected,
              unsigned seed, bool budgets);
/// Recorded steps and their replays, on an engine whose misses the device serves.
void RunReplays(Engine* engine, const Expected& expected, unsigned seed);
/// Fetches of opaque experts, by ids in host and in device memory, and copies of layers.
void RunFetches(Engine* engine, const std::vector<std::vector<double>>& products, unsigned seed);
/// Engines that come and go.
void RunEngines(const Expected& expected, unsigned seed);

}  // namespace moert::soak

#endif  // MOERT_TESTS_GPU_SOAK_SOAK_H_
