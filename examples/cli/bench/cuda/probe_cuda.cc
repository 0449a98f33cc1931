// Rates and costs of a CUDA device. Everything takes turns within a repetition.
#include "cli/bench/probe_cuda.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "cli/bench/cuda/probe_kernels.h"
#include "cli/probe/cuda/streams.h"
#include "fmt/format.h"
#include "moert/backend.h"
#include "util/aligned_buffer.h"
#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::Buffer;

constexpr int64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
constexpr int kQueued = 8;
constexpr double kLeastNs = 8e6;       // of one measurement of a rate
constexpr int64_t kRegion = 64 << 20;  // host memory copied, and device memory
constexpr int kOps = 200;              // of one measurement of a cost

double Since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

/// Calls `work` until the measurement is long enough; nanoseconds a call.
absl::StatusOr<double> Time(const std::function<absl::Status()>& work) {
  const auto begin = Clock::now();
  int64_t calls = 0;
  double ns = 0;
  do {
    MOERT_RETURN_IF_ERROR(work());
    ++calls;
    ns = Since(begin);
  } while (ns < kLeastNs);
  return ns / static_cast<double>(calls);
}

struct Streams {
  Stream a, b;
};

absl::StatusOr<double> Copy(const CopyRate& c, std::byte* host, std::byte* device,
                            const Streams& s) {
  const bool down = c.direction != "to host", up = c.direction != "to device";
  const int64_t pieces = kRegion / c.bytes;
  int64_t at = 0;
  const absl::StatusOr<double> ns = Time([&]() -> absl::Status {
    for (int q = 0; q < c.queued; ++q) {
      const int64_t offset = at++ % pieces * c.bytes;
      // Each direction has its own half, so that neither waits for the other's cache lines.
      if (down) {
        RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device + offset, host + offset, c.bytes,
                                             cudaMemcpyHostToDevice, s.a.get()));
      }
      if (up) {
        RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(host + kRegion + offset, device + kRegion + offset,
                                             c.bytes, cudaMemcpyDeviceToHost, s.b.get()));
      }
    }
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(s.a.get()));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(s.b.get()));
    return absl::OkStatus();
  });
  MOERT_RETURN_IF_ERROR(ns.status());
  return 1e9 * static_cast<double>(c.bytes * c.queued * (down + up)) / *ns;
}

/// The driver's stream memory operations, looked up at run time: nothing links to the driver.
struct MemOps {
  CUresult (*write)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
  CUresult (*wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned) = nullptr;
};

void* DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : nullptr;
}

MemOps FindMemOps() {
  MemOps ops;
  ops.write = reinterpret_cast<decltype(ops.write)>(DriverFunction("cuStreamWriteValue32"));
  ops.wait = reinterpret_cast<decltype(ops.wait)>(DriverFunction("cuStreamWaitValue32"));
  return ops;
}

/// Runs the cost measurements, each of which yields one sample a repetition.
class CostProbe {
 public:
  absl::Status Open() {
    MOERT_ASSIGN_OR_RETURN(s_.a, Stream::Create());
    MOERT_ASSIGN_OR_RETURN(s_.b, Stream::Create());
    for (Event& event : events_) {
      MOERT_ASSIGN_OR_RETURN(event, Event::Create());
    }
    MOERT_ASSIGN_OR_RETURN(device_, Buffer::Device(kBytes));
    MOERT_ASSIGN_OR_RETURN(flags_, Buffer::Pinned(4096));
    RETURN_IF_CUDA_ERROR(cudaMemset(device_.data(), 1, kBytes));
    ops_ = FindMemOps();
    cudaGraph_t graph = nullptr;
    RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(s_.a.get(), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kOps; ++i) RETURN_IF_CUDA_ERROR(LaunchEmpty(s_.a.get()));
    RETURN_IF_CUDA_ERROR(cudaStreamEndCapture(s_.a.get(), &graph));
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    RETURN_IF_CUDA_ERROR(error);
    return absl::OkStatus();
  }
  ~CostProbe() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  absl::Status Sample() {
    MOERT_RETURN_IF_ERROR(Memory());
    MOERT_RETURN_IF_ERROR(Launches());
    MOERT_RETURN_IF_ERROR(Events());
    if (ops_.write != nullptr && ops_.wait != nullptr) MOERT_RETURN_IF_ERROR(StreamOps());
    return Pinning();
  }

  DeviceCosts Costs() const {
    DeviceCosts c;
    c.read_bytes_per_s = SpreadOf(read_);
    c.copy_bytes_per_s = SpreadOf(copy_);
    c.launch = SpreadOf(launch_);
    c.launch_wait = SpreadOf(launch_wait_);
    c.kernel = SpreadOf(kernel_);
    c.graph_kernel = SpreadOf(graph_kernel_);
    c.event_record = SpreadOf(record_);
    c.event_wait = SpreadOf(wait_);
    c.event_hop = SpreadOf(hop_);
    c.event_synchronize = SpreadOf(synchronize_);
    c.memop_enqueue = SpreadOf(enqueue_);
    c.memop = SpreadOf(memop_);
    c.memop_round_trip = SpreadOf(round_trip_);
    c.pin_bytes_per_s = SpreadOf(pin_);
    c.register_bytes_per_s = SpreadOf(register_);
    return c;
  }

 private:
  static constexpr int64_t kBytes = int64_t{2} << 30;

  /// Device time of what `work` puts on the first stream.
  absl::StatusOr<double> DeviceNs(const std::function<absl::Status()>& work) {
    RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[0].get(), s_.a.get()));
    MOERT_RETURN_IF_ERROR(work());
    RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[1].get(), s_.a.get()));
    RETURN_IF_CUDA_ERROR(cudaEventSynchronize(events_[1].get()));
    float ms = 0;
    RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&ms, events_[0].get(), events_[1].get()));
    return 1e6 * static_cast<double>(ms);
  }

  /// Host time of each of many operations, which start on an idle stream and are waited for.
  absl::Status HostNs(std::vector<double>* samples, const std::function<int()>& op) {
    const auto begin = Clock::now();
    for (int i = 0; i < kOps; ++i) RETURN_IF_CUDA_ERROR(op());
    samples->push_back(Since(begin) / kOps);
    RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());
    return absl::OkStatus();
  }

  absl::Status Memory() {
    constexpr int64_t kHalf = kBytes / 2;
    const auto read = [&]() -> absl::Status {
      RETURN_IF_CUDA_ERROR(LaunchRead(device_.data(), kBytes, flags_.data(), s_.a.get()));
      return absl::OkStatus();
    };
    const auto copy = [&]() -> absl::Status {
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device_.data() + kHalf, device_.data(), kHalf,
                                           cudaMemcpyDeviceToDevice, s_.a.get()));
      return absl::OkStatus();
    };
    MOERT_ASSIGN_OR_RETURN(const double read_ns, DeviceNs(read));
    MOERT_ASSIGN_OR_RETURN(const double copy_ns, DeviceNs(copy));
    read_.push_back(1e9 * static_cast<double>(kBytes) / read_ns);
    copy_.push_back(1e9 * static_cast<double>(2 * kHalf) / copy_ns);
    return absl::OkStatus();
  }

  absl::Status Launches() {
    MOERT_RETURN_IF_ERROR(HostNs(&launch_, [&] { return LaunchEmpty(s_.a.get()); }));
    MOERT_RETURN_IF_ERROR(HostNs(&launch_wait_, [&]() -> int {
      const cudaError_t error = LaunchEmpty(s_.a.get());
      return error != cudaSuccess ? error : cudaStreamSynchronize(s_.a.get());
    }));
    MOERT_ASSIGN_OR_RETURN(const double kernels, DeviceNs([&]() -> absl::Status {
                             for (int i = 0; i < kOps; ++i)
                               RETURN_IF_CUDA_ERROR(LaunchEmpty(s_.a.get()));
                             return absl::OkStatus();
                           }));
    MOERT_ASSIGN_OR_RETURN(const double graph, DeviceNs([&]() -> absl::Status {
                             RETURN_IF_CUDA_ERROR(cudaGraphLaunch(graph_, s_.a.get()));
                             return absl::OkStatus();
                           }));
    kernel_.push_back(kernels / kOps);
    graph_kernel_.push_back(graph / kOps);
    return absl::OkStatus();
  }

  absl::Status Events() {
    MOERT_RETURN_IF_ERROR(
        HostNs(&record_, [&] { return cudaEventRecord(events_[2].get(), s_.a.get()); }));
    MOERT_RETURN_IF_ERROR(
        HostNs(&wait_, [&] { return cudaStreamWaitEvent(s_.b.get(), events_[2].get(), 0); }));
    // Back and forth between two streams, a kernel on each side.
    MOERT_ASSIGN_OR_RETURN(
        const double chain, DeviceNs([&]() -> absl::Status {
          for (int i = 0; i < kOps / 2; ++i) {
            RETURN_IF_CUDA_ERROR(LaunchEmpty(s_.a.get()));
            RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[2].get(), s_.a.get()));
            RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(s_.b.get(), events_[2].get(), 0));
            RETURN_IF_CUDA_ERROR(LaunchEmpty(s_.b.get()));
            RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[3].get(), s_.b.get()));
            RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(s_.a.get(), events_[3].get(), 0));
          }
          return absl::OkStatus();
        }));
    hop_.push_back(chain / kOps);
    const auto begin = Clock::now();
    for (int i = 0; i < kOps; ++i) {
      RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[2].get(), s_.a.get()));
      RETURN_IF_CUDA_ERROR(cudaEventSynchronize(events_[2].get()));
    }
    synchronize_.push_back(Since(begin) / kOps);
    return absl::OkStatus();
  }

  absl::Status StreamOps() {
    auto* words = reinterpret_cast<volatile uint32_t*>(flags_.data());
    const auto at = [&](int i) { return reinterpret_cast<CUdeviceptr>(flags_.data() + 256 * i); };
    MOERT_RETURN_IF_ERROR(HostNs(&enqueue_, [&]() -> int {
      return ops_.write(s_.a.get(), at(0), 1, CU_STREAM_WRITE_VALUE_DEFAULT);
    }));
    MOERT_ASSIGN_OR_RETURN(
        const double writes, DeviceNs([&]() -> absl::Status {
          for (int i = 0; i < kOps; ++i) {
            RETURN_IF_CUDA_ERROR(ops_.write(s_.a.get(), at(0), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
          }
          return absl::OkStatus();
        }));
    memop_.push_back(writes / kOps);
    constexpr int kAsk = 64, kAnswer = 128;  // words, on lines of their own
    constexpr int kTrips = 50;
    words[kAsk] = 0;
    words[kAnswer] = 0;
    for (uint32_t i = 1; i <= kTrips; ++i) {
      RETURN_IF_CUDA_ERROR(ops_.wait(s_.a.get(), at(1), i, CU_STREAM_WAIT_VALUE_GEQ));
      RETURN_IF_CUDA_ERROR(ops_.write(s_.a.get(), at(2), i, CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    const auto begin = Clock::now();
    bool lost = false;
    for (uint32_t i = 1; i <= kTrips && !lost; ++i) {
      words[kAsk] = i;
      while (words[kAnswer] != i && !lost) lost = Since(begin) > 1e9;
    }
    const double ns = Since(begin);
    words[kAsk] = kTrips;  // lets the stream go on, whatever happened
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(s_.a.get()));
    if (!lost) round_trip_.push_back(ns / kTrips);
    return absl::OkStatus();
  }

  absl::Status Pinning() {
    constexpr int64_t kPinned = int64_t{256} << 20;
    auto begin = Clock::now();
    {
      MOERT_ASSIGN_OR_RETURN(const Buffer pinned, Buffer::Pinned(kPinned));
      pin_.push_back(1e9 * static_cast<double>(kPinned) / Since(begin));
    }
    util::AlignedBuffer pageable;
    MOERT_RETURN_IF_ERROR(pageable.Reset(kPinned));
    std::memset(pageable.data(), 1, kPinned);
    begin = Clock::now();
    RETURN_IF_CUDA_ERROR(cudaHostRegister(pageable.data(), kPinned, cudaHostRegisterDefault));
    register_.push_back(1e9 * static_cast<double>(kPinned) / Since(begin));
    RETURN_IF_CUDA_ERROR(cudaHostUnregister(pageable.data()));
    return absl::OkStatus();
  }

  Streams s_;
  Event events_[4];
  Buffer device_, flags_;
  MemOps ops_;
  cudaGraphExec_t graph_ = nullptr;
  std::vector<double> read_, copy_, launch_, launch_wait_, kernel_, graph_kernel_, record_, wait_,
      hop_, synchronize_, enqueue_, memop_, round_trip_, pin_, register_;
};

absl::StatusOr<std::vector<CopyRate>> ProbeCopies(int repeats) {
  std::vector<CopyRate> rates;
  for (const int64_t bytes : kSizes) {
    for (const char* direction : {"to device", "to host", "both"}) {
      rates.push_back({bytes, "pinned", direction, 1, {}});
      rates.push_back({bytes, "pinned", direction, kQueued, {}});
      if (std::string(direction) != "both") rates.push_back({bytes, "pageable", direction, 1, {}});
    }
  }
  Streams s;
  MOERT_ASSIGN_OR_RETURN(s.a, Stream::Create());
  MOERT_ASSIGN_OR_RETURN(s.b, Stream::Create());
  MOERT_ASSIGN_OR_RETURN(const Buffer device, Buffer::Device(2 * kRegion));
  MOERT_ASSIGN_OR_RETURN(const Buffer pinned, Buffer::Pinned(2 * kRegion));
  util::AlignedBuffer pageable;
  MOERT_RETURN_IF_ERROR(pageable.Reset(2 * kRegion));
  std::memset(pageable.data(), 1, 2 * kRegion);
  std::memset(pinned.data(), 1, 2 * kRegion);
  std::vector<std::vector<double>> samples(rates.size());
  for (int r = 0; r < repeats; ++r) {
    for (size_t i = 0; i < rates.size(); ++i) {
      std::byte* host = rates[i].memory == "pinned" ? pinned.data() : pageable.data();
      MOERT_ASSIGN_OR_RETURN(const double rate, Copy(rates[i], host, device.data(), s));
      samples[i].push_back(rate);
    }
  }
  for (size_t i = 0; i < rates.size(); ++i) rates[i].bytes_per_s = SpreadOf(samples[i]);
  return rates;
}

std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

absl::StatusOr<CudaProbe> ProbeCuda(const Shape& shape, const std::vector<int>& tokens,
                                    int repeats) {
  const absl::Status available = CudaStatus();
  if (!available.ok()) return absl::UnavailableError(available.message());
  CudaProbe probe;
  cudaDeviceProp properties;
  int device = 0, driver = 0, runtime = 0;
  RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, device));
  RETURN_IF_CUDA_ERROR(cudaDriverGetVersion(&driver));
  RETURN_IF_CUDA_ERROR(cudaRuntimeGetVersion(&runtime));
  probe.device = properties.name;
  probe.driver = VersionText(driver);
  probe.runtime = VersionText(runtime);
  MOERT_ASSIGN_OR_RETURN(probe.copies, ProbeCopies(repeats));
  {
    CostProbe costs;
    MOERT_RETURN_IF_ERROR(costs.Open());
    MOERT_RETURN_IF_ERROR(costs.Sample());  // first launches load code
    CostProbe measured;
    MOERT_RETURN_IF_ERROR(measured.Open());
    for (int r = 0; r < repeats; ++r) MOERT_RETURN_IF_ERROR(measured.Sample());
    probe.costs = measured.Costs();
  }
  MOERT_ASSIGN_OR_RETURN(DeviceLayers layers, ProbeDeviceLayers(shape, tokens, repeats));
  probe.layers = std::move(layers.layers);
  probe.experts = layers.experts;
  probe.expert_bytes = layers.expert_bytes;
  return probe;
}

}  // namespace moert::cli
