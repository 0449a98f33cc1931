#include "cli/bench/device_bench.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "cli/bench/cuda/driver_calls.h"
#include "cli/bench/cuda/probe_kernels.h"
#include "cli/common/report.h"
#include "cli/probe/cuda/streams.h"
#include "fmt/format.h"
#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;
using gpu::Buffer;

/// Bytes that attention reads in turn: far more than the device's caches hold.
constexpr int64_t kAttentionMemory = int64_t{1} << 30;

double MsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

int64_t ThreadCpuNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class DeviceRunner final : public StepRunner {
 public:
  DeviceRunner(const DeviceRunOptions& options, const Buffer* attention)
      : options_(options), attention_(attention) {}
  ~DeviceRunner() override {
    for (auto& [engine, replay] : replays_) cudaGraphExecDestroy(replay);
  }

  absl::Status Init() {
    MOERT_ASSIGN_OR_RETURN(stream_, Stream::Create());
    MOERT_ASSIGN_OR_RETURN(word_, Buffer::Device(256));
    return absl::OkStatus();
  }

  absl::Status Prepare(absl::Span<const StepInputs> steps) override {
    steps_ = steps;
    first_.clear();
    int64_t floats = 0, most = 0, row = 0;
    for (const StepInputs& step : steps) {
      first_.push_back(floats);
      int64_t size = 0;
      for (const LayerInputs& layer : step.layers) {
        if (!layer.ids.empty()) {
          return absl::UnimplementedError("a recorded routing: its steps run on the CPU backend");
        }
        size += static_cast<int64_t>(layer.hidden.size());
        row = std::max(row, static_cast<int64_t>(layer.hidden.size()));
      }
      floats += size;
      most = std::max(most, size);
    }
    MOERT_RETURN_IF_ERROR(Grow(&inputs_, floats));
    if (Bytes(most) > x_.bytes() || Bytes(row) > y_.bytes()) DropReplays();
    MOERT_RETURN_IF_ERROR(Grow(&x_, most));
    MOERT_RETURN_IF_ERROR(Grow(&y_, row));
    int64_t at = 0;
    for (const StepInputs& step : steps) {
      for (const LayerInputs& layer : step.layers) {
        RETURN_IF_CUDA_ERROR(cudaMemcpy(Floats(inputs_) + at, layer.hidden.data(),
                                        layer.hidden.size() * sizeof(float),
                                        cudaMemcpyHostToDevice));
        at += static_cast<int64_t>(layer.hidden.size());
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepCost> Run(Engine* engine, size_t index) override {
    const StepInputs& step = steps_[index];
    int64_t floats = 0;
    for (const LayerInputs& layer : step.layers) {
      floats += static_cast<int64_t>(layer.hidden.size());
    }
    // Captured steps read their hidden states from here, whichever step it is.
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(x_.data(), Floats(inputs_) + first_[index],
                                         static_cast<size_t>(Bytes(floats)),
                                         cudaMemcpyDeviceToDevice, stream_.get()));
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    cudaGraphExec_t replay = nullptr;
    if (options_.graph) {
      MOERT_ASSIGN_OR_RETURN(replay, Captured(engine, step));
    }
    if (options_.layer_times && replay == nullptr) {
      MOERT_RETURN_IF_ERROR(ReserveEvents(step.layers.size() + 1));
      RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[0].get(), stream_.get()));
    }

    const DriverCalls calls = CountDriverCalls();
    const int64_t cpu_ns = ThreadCpuNs();
    const auto begin = Clock::now();
    MOERT_ASSIGN_OR_RETURN(const StepId id, Begin(engine, step));
    StepCost cost;
    cost.begin_ms = MsSince(begin);
    absl::Status status;
    if (replay != nullptr) {
      status = gpu::ToStatus(cudaGraphLaunch(replay, stream_.get()), "replaying a step");
    } else {
      status = Layers(engine, id, step, options_.layer_times);
    }
    status.Update(engine->EndStep(id));
    cost.host_ms = 1e-6 * static_cast<double>(ThreadCpuNs() - cpu_ns);
    const DriverCalls after = CountDriverCalls();
    MOERT_RETURN_IF_ERROR(status);
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    cost.ms = MsSince(begin);
    cost.replayed = replay != nullptr;
    if (after.counted) {
      cost.waits = after.waits - calls.waits;
      cost.launches = after.launches - calls.launches;
      cost.waited_ms = 1e-6 * static_cast<double>(after.waited_cpu_ns - calls.waited_cpu_ns);
    }
    if (options_.layer_times && replay == nullptr) {
      for (size_t l = 0; l < step.layers.size(); ++l) {
        float ms = 0;
        RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&ms, events_[l].get(), events_[l + 1].get()));
        cost.layer_us.push_back(1e3f * ms);
      }
    }
    return cost;
  }

 private:
  static int64_t Bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }
  static float* Floats(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
  static absl::Status Grow(Buffer* buffer, int64_t floats) {
    if (buffer->bytes() >= Bytes(floats)) return absl::OkStatus();
    *buffer = Buffer();  // both together might not fit
    MOERT_ASSIGN_OR_RETURN(*buffer, Buffer::Device(Bytes(floats)));
    return absl::OkStatus();
  }
  absl::Status ReserveEvents(size_t count) {
    while (events_.size() < count) {
      MOERT_ASSIGN_OR_RETURN(Event event, Event::Create());
      events_.push_back(std::move(event));
    }
    return absl::OkStatus();
  }
  void DropReplays() {
    for (auto& [engine, replay] : replays_) cudaGraphExecDestroy(replay);
    replays_.clear();
  }

  absl::StatusOr<StepId> Begin(Engine* engine, const StepInputs& step) {
    StepInfo info;
    info.phase = step.phase;
    info.rows = step.rows;
    info.request_ids = step.request_ids;
    info.stream = stream_.get();
    return engine->BeginStep(info);
  }

  absl::Status Layers(Engine* engine, StepId id, const StepInputs& step, bool times) {
    const MoeModelSpec& model = engine->model();
    const float* x = Floats(x_);
    for (int l = 0; l < model.num_layers(); ++l) {
      MOERT_RETURN_IF_ERROR(Attention());
      const int64_t hidden = model.layers[l].hidden;
      MOERT_RETURN_IF_ERROR(engine->Forward(id, l, {x, DType::kF32, step.rows, hidden, hidden},
                                            {y_.data(), DType::kF32, step.rows, hidden, hidden}));
      if (times) RETURN_IF_CUDA_ERROR(cudaEventRecord(events_[l + 1].get(), stream_.get()));
      x += step.rows * hidden;
    }
    return absl::OkStatus();
  }

  absl::Status Attention() {
    for (int64_t left = options_.attention_bytes; left > 0;) {
      const int64_t bytes = std::min(left, attention_->bytes());
      if (attention_at_ + bytes > attention_->bytes()) attention_at_ = 0;
      RETURN_IF_CUDA_ERROR(
          LaunchRead(attention_->data() + attention_at_, bytes, word_.data(), stream_.get()));
      attention_at_ += (bytes + 255) / 256 * 256;
      left -= bytes;
    }
    return absl::OkStatus();
  }

  /// The graph of an engine's steps; null where its strategy cannot be captured.
  absl::StatusOr<cudaGraphExec_t> Captured(Engine* engine, const StepInputs& step) {
    const auto known = replays_.find(engine);
    if (known != replays_.end() && rows_ == step.rows) return known->second;
    if (rows_ != step.rows) DropReplays();
    rows_ = step.rows;
    const GraphNeeds& needs = engine->graph_needs();
    if (!needs.capturable || (needs.max_rows > 0 && step.rows > needs.max_rows)) return nullptr;
    // A first eager step loads every kernel.
    MOERT_ASSIGN_OR_RETURN(const StepId eager, Begin(engine, step));
    absl::Status status = Layers(engine, eager, step, false);
    status.Update(engine->EndStep(eager));
    MOERT_RETURN_IF_ERROR(status);
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    MOERT_ASSIGN_OR_RETURN(const StepId id, Begin(engine, step));
    cudaGraph_t graph = nullptr;
    RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    status = Layers(engine, id, step, false);
    cudaError_t error = cudaStreamEndCapture(stream_.get(), &graph);
    status.Update(engine->EndStep(id));
    cudaGraphExec_t replay = nullptr;
    if (status.ok() && error == cudaSuccess) error = cudaGraphInstantiate(&replay, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    MOERT_RETURN_IF_ERROR(status);
    RETURN_IF_CUDA_ERROR(error);
    replays_[engine] = replay;
    return replay;
  }

  const DeviceRunOptions options_;
  const Buffer* const attention_;
  int64_t attention_at_ = 0;
  Stream stream_;
  Buffer word_;
  Buffer inputs_;  // of all prepared steps
  Buffer x_, y_;   // of the step that runs: [layers, rows, hidden], [rows, hidden]
  std::vector<int64_t> first_;
  absl::Span<const StepInputs> steps_;
  std::vector<Event> events_;
  std::map<const Engine*, cudaGraphExec_t> replays_;
  int64_t rows_ = 0;  // of the replays
};

class CudaBench final : public DeviceBench {
 public:
  absl::Status Init() {
    MOERT_RETURN_IF_ERROR(CudaStatus());
    RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties_, 0));
    RETURN_IF_CUDA_ERROR(cudaDriverGetVersion(&driver_));
    RETURN_IF_CUDA_ERROR(cudaRuntimeGetVersion(&runtime_));
    MOERT_ASSIGN_OR_RETURN(attention_, Buffer::Device(kAttentionMemory));
    RETURN_IF_CUDA_ERROR(cudaMemset(attention_.data(), 1, kAttentionMemory));
    RETURN_IF_CUDA_ERROR(cudaDeviceSynchronize());  // the stream below does not wait for it
    MOERT_ASSIGN_OR_RETURN(stream_, Stream::Create());
    std::vector<double> rates;
    for (int i = 0; i < 7; ++i) {
      MOERT_ASSIGN_OR_RETURN(const double ms, DeviceMs([&] {
                               return LaunchRead(attention_.data(), kAttentionMemory - 256,
                                                 attention_.data() + kAttentionMemory - 256,
                                                 stream_.get());
                             }));
      if (i > 1) rates.push_back(1e3 * static_cast<double>(kAttentionMemory) / ms);
    }
    read_bytes_per_s_ = SpreadOf(rates).median;
    return absl::OkStatus();
  }

  nlohmann::json Describe() const override {
    const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
    return {
        {"device", properties_.name}, {"driver", version(driver_)}, {"runtime", version(runtime_)}};
  }

  absl::StatusOr<int64_t> FreeBytes() const override {
    size_t free = 0, total = 0;
    RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

  double ReadBytesPerSecond() const override { return read_bytes_per_s_; }

  absl::StatusOr<double> CopyMs(int64_t bytes) const override {
    MOERT_ASSIGN_OR_RETURN(const Buffer from, Buffer::Pinned(bytes));
    MOERT_ASSIGN_OR_RETURN(const Buffer to, Buffer::Device(bytes));
    std::vector<double> times;
    for (int i = 0; i < 9; ++i) {
      MOERT_ASSIGN_OR_RETURN(const double ms, DeviceMs([&] {
                               return cudaMemcpyAsync(to.data(), from.data(),
                                                      static_cast<size_t>(bytes),
                                                      cudaMemcpyHostToDevice, stream_.get());
                             }));
      if (i > 1) times.push_back(ms);
    }
    return SpreadOf(times).median;
  }

  absl::StatusOr<std::shared_ptr<void>> Pin(std::byte* data, int64_t bytes) const override {
    RETURN_IF_CUDA_ERROR(
        cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterPortable));
    return std::shared_ptr<void>(data, [](void* locked) { cudaHostUnregister(locked); });
  }

  absl::StatusOr<std::unique_ptr<StepRunner>> MakeRunner(const DeviceRunOptions& options) override {
    auto runner = std::make_unique<DeviceRunner>(options, &attention_);
    MOERT_RETURN_IF_ERROR(runner->Init());
    return runner;
  }

 private:
  template <typename Work>
  absl::StatusOr<double> DeviceMs(Work work) const {
    MOERT_ASSIGN_OR_RETURN(const Event begin, Event::Create());
    MOERT_ASSIGN_OR_RETURN(const Event end, Event::Create());
    RETURN_IF_CUDA_ERROR(cudaEventRecord(begin.get(), stream_.get()));
    RETURN_IF_CUDA_ERROR(work());
    RETURN_IF_CUDA_ERROR(cudaEventRecord(end.get(), stream_.get()));
    RETURN_IF_CUDA_ERROR(cudaEventSynchronize(end.get()));
    float ms = 0;
    RETURN_IF_CUDA_ERROR(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    return ms;
  }

  cudaDeviceProp properties_{};
  int driver_ = 0, runtime_ = 0;
  Buffer attention_;
  Stream stream_;
  double read_bytes_per_s_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBench>> MakeCudaBench() {
  auto bench = std::make_unique<CudaBench>();
  MOERT_RETURN_IF_ERROR(bench->Init());
  return bench;
}

}  // namespace moert::cli
