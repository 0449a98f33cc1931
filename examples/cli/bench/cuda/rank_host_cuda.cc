// Ranks on devices, over NCCL.
#include <bit>
#include <utility>
#include <vector>

#include "cli/bench/rank_host.h"
#include "cli/probe/cuda/streams.h"
#include "fmt/format.h"
#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using gpu::Buffer;
using gpu::DeviceScope;

class CudaRank final : public RankHost {
 public:
  explicit CudaRank(const NcclOptions& group) : group_(group) {}
  ~CudaRank() override {
    const DeviceScope scope(group_.device);
    DropCapture();
    memory_ = Buffer();
    stream_ = Stream();
  }
  absl::Status Init() {
    const DeviceScope scope(group_.device);
    MOERT_ASSIGN_OR_RETURN(stream_, Stream::Create());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Collectives>> Join() override {
    return MakeNcclCollectives(group_);
  }

  absl::Status Place(const RoutedStep& step, DType dtype) override {
    const DeviceScope scope(group_.device);
    dtype_ = dtype;
    rows_ = step.rows;
    cols_ = static_cast<int64_t>(step.hidden.size()) / step.rows;
    pairs_ = static_cast<int64_t>(step.ids[0].size());
    gpu::Carver count;
    Carve(step, &count);
    if (memory_.bytes() < count.used()) {
      DropCapture();
      memory_ = Buffer();
      MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
    }
    gpu::Carver carver(memory_.data());
    Carve(step, &carver);
    const auto copy = [&](void* to, const void* from, size_t values) {
      return cudaMemcpyAsync(to, from, values * 4, cudaMemcpyHostToDevice, stream_.get());
    };
    std::vector<uint16_t> narrow;  // as long as the copies run
    if (dtype == DType::kBF16) {
      for (const float v : step.hidden) {
        narrow.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
      }
      RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(x_, narrow.data(), narrow.size() * 2,
                                           cudaMemcpyHostToDevice, stream_.get()));
    } else {
      RETURN_IF_CUDA_ERROR(copy(x_, step.hidden.data(), step.hidden.size()));
    }
    for (size_t l = 0; l < step.ids.size(); ++l) {
      RETURN_IF_CUDA_ERROR(copy(ids_[l], step.ids[l].data(), step.ids[l].size()));
      RETURN_IF_CUDA_ERROR(copy(weights_[l], step.weights[l].data(), step.weights[l].size()));
    }
    RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_.get()));
    return absl::OkStatus();
  }

  MatrixView x() const override { return {x_, dtype_, rows_, cols_, cols_}; }
  MutableMatrixView y() const override { return {y_, dtype_, rows_, cols_, cols_}; }
  RoutedInput routing(int layer) const override {
    const auto l = static_cast<size_t>(layer);
    RoutedInput routing;
    routing.place = Place::kDevice;
    routing.ids = {ids_[l], static_cast<size_t>(pairs_)};
    routing.weights = {weights_[l], static_cast<size_t>(pairs_)};
    return routing;
  }
  void* stream() const override { return stream_.get(); }

  absl::Status Capture(absl::FunctionRef<absl::Status()> layers) override {
    const DeviceScope scope(group_.device);
    DropCapture();
    RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    const absl::Status status = layers();
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream_.get(), &graph);
    if (status.ok() && error == cudaSuccess) error = cudaGraphInstantiate(&replay_, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    MOERT_RETURN_IF_ERROR(status);
    RETURN_IF_CUDA_ERROR(error);
    return absl::OkStatus();
  }
  absl::Status Replay() override {
    RETURN_IF_CUDA_ERROR(cudaGraphLaunch(replay_, stream_.get()));
    return absl::OkStatus();
  }
  void DropCapture() override {
    if (replay_ != nullptr) cudaGraphExecDestroy(replay_);
    replay_ = nullptr;
  }

 private:
  void Carve(const RoutedStep& step, gpu::Carver* carver) {
    x_ = carver->Take<float>(rows_ * cols_);
    y_ = carver->Take<float>(rows_ * cols_);
    ids_.clear();
    weights_.clear();
    for (size_t l = 0; l < step.ids.size(); ++l) {
      ids_.push_back(carver->Take<int32_t>(pairs_));
      weights_.push_back(carver->Take<float>(pairs_));
    }
  }

  const NcclOptions group_;
  Stream stream_;
  Buffer memory_;
  DType dtype_ = DType::kF32;
  int64_t rows_ = 0, cols_ = 0, pairs_ = 0;
  float* x_ = nullptr;
  float* y_ = nullptr;
  std::vector<int32_t*> ids_;
  std::vector<float*> weights_;
  cudaGraphExec_t replay_ = nullptr;
};

absl::StatusOr<std::shared_ptr<void>> Pin(std::byte* data, int64_t bytes) {
  RETURN_IF_CUDA_ERROR(
      cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterPortable));
  return std::shared_ptr<void>(data, [](void* locked) { cudaHostUnregister(locked); });
}

}  // namespace

absl::StatusOr<RankHosts> MakeCudaRanks(int ranks, bool alone) {
  int devices = 0;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceCount(&devices));
  if (devices < ranks) {
    return absl::UnavailableError(fmt::format("{} GPUs; this machine has {}", ranks, devices));
  }
  NcclOptions group;
  group.size = alone ? 1 : ranks;
  RankHosts hosts;
  hosts.pin = Pin;
  cudaDeviceProp properties{};
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, 0));
  hosts.device = properties.name;
  for (int r = 0; r < ranks; ++r) {
    if (r == 0 || alone) {
      MOERT_ASSIGN_OR_RETURN(group.id, MakeNcclId());
    }
    group.rank = alone ? 0 : r;
    group.device = r;
    auto rank = std::make_unique<CudaRank>(group);
    MOERT_RETURN_IF_ERROR(rank->Init());
    hosts.ranks.push_back(std::move(rank));
  }
  return hosts;
}

}  // namespace moert::cli
