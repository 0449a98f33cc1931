// Groups of ranks that are threads of a test, a device each, over NCCL; and what one engine gives.
//
// Kernels are loaded before they are needed: loading one may wait for all that its device runs, a
// collective too, and hold a lock of the driver meanwhile that another rank needs to come to it.
#ifndef MOERT_TESTS_GPU_RANK_RUN_H_
#define MOERT_TESTS_GPU_RANK_RUN_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "device_array.h"
#include "device_step.h"
#include "moert/parallel/expert_parallel.h"
#include "shard_inputs.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/shards.h"
#include "tests/support/synthetic_source.h"
#include "tests/support/watchdog.h"

namespace moert::test {

constexpr int64_t kSecond = 1'000'000'000;
/// The time limit of a case, or of making a group. A wait for a rank that does not come ends
/// before, with a status.
constexpr std::chrono::seconds kCaseLimit{40};

/// Before the driver is asked for anything.
inline const bool kLoadsEagerly = setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0) == 0;
/// Multicast over NVLink is broken on some hosts for all that share them.
inline const bool kNoMulticast = setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0) == 0;

inline int Devices() {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  return devices;
}

inline bool Skipped(int devices) {
  if (Devices() >= devices) return false;
  WARN("skipped: needs " << devices << " devices");
  return true;
}

inline bool Contains(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~CurrentDevice() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

/// Runs `rank(r)` for every rank, each on a thread with its device the current one. Ends the
/// program where they hang.
template <typename Rank>
std::vector<absl::Status> OnDevices(const std::string& section, int size, const Rank& rank) {
  Watchdog watchdog(section, size, kCaseLimit);
  return OnRanks(size, [&](int r) -> absl::Status {
    if (cudaSetDevice(r) != cudaSuccess) return absl::InternalError("cudaSetDevice");
    return rank(r, [&, r](const char* what) { watchdog.Note(r, what); });
  });
}

/// Which rows a rank has: all, or one of several equal blocks.
struct RankBlock {
  int rank = 0;
  int ranks = 1;
};

/// A rank's memory on its device. The test's own thread makes it and reads it.
class RankRows {
 public:
  /// `half`: hidden states and outputs are bf16.
  RankRows(int device, const MoeModelSpec& model, int64_t all_rows, bool half = false,
           RankBlock block = {})
      : current_(device),
        rows_(all_rows / block.ranks),
        first_(block.rank * rows_),
        all_rows_(all_rows),
        layers_(model.num_layers()),
        hidden_(model.layers[0].hidden),
        half_(half),
        given_(RandomRouting(model, all_rows)),
        device_(static_cast<size_t>(layers_ * all_rows * hidden_)),
        ids_(given_.ids),
        weights_(given_.weights) {
    std::mt19937_64 random(17);
    const auto values = SyntheticSource::RandomFloats(layers_ * all_rows * hidden_, 1, &random);
    device_.Set(values);
    if (half) half_x_ = std::make_unique<DeviceArray<uint16_t>>(Rounded(values));
    if (half) half_y_ = std::make_unique<DeviceArray<uint16_t>>(values.size());
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // the stream does not wait for the copies
    current_.reset();
  }

  StepInfo Info(Phase phase) const {
    StepInfo info;
    info.phase = phase;
    info.rows = rows_;
    info.stream = device_.stream();
    return info;
  }
  MatrixView x(int layer) const {
    if (half_) return {half_x_->get() + At(layer), DType::kBF16, rows_, hidden_, hidden_};
    return {device_.x() + At(layer), DType::kF32, rows_, hidden_, hidden_};
  }
  MutableMatrixView y(int layer) const {
    if (half_) return {half_y_->get() + At(layer), DType::kBF16, rows_, hidden_, hidden_};
    return {device_.y() + At(layer), DType::kF32, rows_, hidden_, hidden_};
  }
  RoutedInput routing(Place place) const {
    RoutedInput routing;
    routing.place = place;
    const size_t k = given_.ids.size() / static_cast<size_t>(all_rows_);
    const size_t first = static_cast<size_t>(first_) * k, pairs = static_cast<size_t>(rows_) * k;
    const bool host = place == Place::kHost;
    routing.ids = absl::MakeConstSpan((host ? given_.ids.data() : ids_.get()) + first, pairs);
    routing.weights =
        absl::MakeConstSpan((host ? given_.weights.data() : weights_.get()) + first, pairs);
    return routing;
  }
  cudaStream_t stream() const { return device_.stream(); }
  /// Rows that are not written again show as NaN. In the order of the stream.
  cudaError_t ForgetOutputs() const {
    const auto values = static_cast<size_t>(layers_ * all_rows_ * hidden_);
    return half_ ? cudaMemsetAsync(half_y_->get(), 0xff, values * 2, stream())
                 : cudaMemsetAsync(device_.y(), 0xff, values * 4, stream());
  }
  /// The output of its rows, layer after layer.
  std::vector<float> Outputs() {
    const std::vector<float> all = half_ ? Widened(half_y_->Get()) : device_.Get();
    std::vector<float> own;
    for (int l = 0; l < layers_; ++l) {
      own.insert(own.end(), all.begin() + At(l), all.begin() + At(l) + rows_ * hidden_);
    }
    return own;
  }

 private:
  // Current while the rest is made.
  class Scoped {
   public:
    explicit Scoped(int device) : device_(std::make_unique<CurrentDevice>(device)) {}
    void reset() { device_.reset(); }

   private:
    std::unique_ptr<CurrentDevice> device_;
  };
  int64_t At(int layer) const { return (layer * all_rows_ + first_) * hidden_; }

  Scoped current_;
  const int64_t rows_, first_, all_rows_;
  const int layers_;
  const int64_t hidden_;
  const bool half_;
  const Routing given_;
  DeviceRowsBuffer device_;
  std::unique_ptr<DeviceArray<uint16_t>> half_x_, half_y_;
  DeviceArray<int32_t> ids_;
  DeviceArray<float> weights_;
};

inline EngineOptions Options(int device, int64_t rows, double fraction) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.device = device;
  options.threads = 1;
  options.strategy = fraction == 1 ? "resident" : "on-demand";
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = rows;
  return options;
}

/// The output of one engine on a device. routing null: it routes.
inline std::vector<float> OneEngine(const std::shared_ptr<const ExpertSource>& source, int device,
                                    int64_t rows, bool routed, bool half = false) {
  auto engine = Engine::Create(source, Options(device, rows, 1));
  REQUIRE_OK(engine.status());
  RankRows at(device, source->model(), rows, half);
  auto step = (*engine)->BeginStep(at.Info(Phase::kDecode));
  REQUIRE_OK(step.status());
  for (int l = 0; l < source->model().num_layers(); ++l) {
    REQUIRE_OK(
        routed ? (*engine)->ForwardRouted(*step, l, at.x(l), at.routing(Place::kDevice), at.y(l))
               : (*engine)->Forward(*step, l, at.x(l), at.y(l)));
  }
  REQUIRE_OK((*engine)->EndStep(*step));
  return at.Outputs();
}

inline absl::StatusOr<std::shared_ptr<Collectives>> JoinGroup(const NcclId& id, int rank, int size,
                                                              int64_t timeout_ns = 20 * kSecond) {
  NcclOptions options;
  options.rank = rank;
  options.size = size;
  options.device = rank;
  options.id = id;
  options.timeout_ns = timeout_ns;
  auto made = MakeNcclCollectives(options);
  if (!made.ok()) return made.status();
  return std::shared_ptr<Collectives>(*std::move(made));
}

inline NcclId NewId() {
  const auto id = MakeNcclId();
  REQUIRE_OK(id.status());
  return *id;
}

/// The ranks' sides of one communicator, which takes a second to make: for many runs. None of them
/// may fail, and their graphs go before it.
class RankGroup {
 public:
  explicit RankGroup(int size) : ranks_(static_cast<size_t>(size)) {
    const NcclId id = NewId();
    const auto statuses = OnDevices("group", size, [&](int r, auto&&) -> absl::Status {
      auto joined = JoinGroup(id, r, size);
      if (joined.ok()) ranks_[static_cast<size_t>(r)] = *std::move(joined);
      return joined.status();
    });
    for (const absl::Status& status : statuses) REQUIRE_OK(status);
  }
  ~RankGroup() {  // side by side
    OnDevices("end of the group", size(), [&](int r, auto&&) -> absl::Status {
      ranks_[static_cast<size_t>(r)].reset();
      return absl::OkStatus();
    });
  }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  const std::shared_ptr<Collectives>& rank(int r) const { return ranks_[static_cast<size_t>(r)]; }

 private:
  std::vector<std::shared_ptr<Collectives>> ranks_;
};

struct Case {
  std::vector<Shard> shards;
  int64_t rows = 4;
  bool routed = true;  // ids are given
  Place place = Place::kDevice;
  double fraction = 1;
  bool graph = false;
  TokenPlacement placement = TokenPlacement::kReplicated;
  bool half = false;  // bf16 rows
  ExchangeOptions exchange = {};
};

inline std::string Text(const Case& c) {
  std::string text = std::to_string(c.rows) + " rows";
  if (c.placement == TokenPlacement::kPerRank) text += ", own";
  if (c.half) text += ", bf16";
  if (c.exchange.bf16_rows > 0) text += ", parts in bf16";
  if (c.fraction < 1) text += ", offloaded";
  if (c.place == Place::kHost) text += ", routed on the host";
  if (c.graph) text += ", captured";
  return text;
}

inline absl::Status Layers(ExpertParallel* parallel, StepId step, const Case& c, RankRows* rows) {
  const RoutedInput routing = rows->routing(c.place);
  for (int l = 0; l < parallel->engine()->model().num_layers(); ++l) {
    const absl::Status status =
        parallel->Forward(step, l, rows->x(l), c.routed ? &routing : nullptr, rows->y(l));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

inline absl::Status EagerStep(ExpertParallel* parallel, Collectives* group, const Case& c,
                              RankRows* rows) {
  auto step = parallel->BeginStep(rows->Info(Phase::kDecode), c.placement);
  if (!step.ok()) return step.status();
  absl::Status status = Layers(parallel, *step, c, rows);
  status.Update(parallel->EndStep(*step));
  if (status.ok()) status = group->Wait(rows->stream(), 20 * kSecond);
  return status;
}

inline absl::Status ReplayedSteps(ExpertParallel* parallel, Collectives* group, const Case& c,
                                  RankRows* rows) {
  if (!parallel->engine()->graph_needs().capturable)
    return absl::InternalError("cannot be captured");
  auto step = parallel->BeginStep(rows->Info(Phase::kDecode), c.placement);
  if (!step.ok()) return step.status();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  const absl::Cleanup destroy = [&] {  // before the group, whatever fails
    if (replay != nullptr) cudaGraphExecDestroy(replay);
    if (graph != nullptr) cudaGraphDestroy(graph);
  };
  cudaError_t error = cudaStreamBeginCapture(rows->stream(), cudaStreamCaptureModeThreadLocal);
  absl::Status status = Layers(parallel, *step, c, rows);
  if (error == cudaSuccess) error = cudaStreamEndCapture(rows->stream(), &graph);
  if (error == cudaSuccess) error = cudaGraphInstantiate(&replay, graph, 0);
  status.Update(parallel->EndStep(*step));
  for (int i = 0; i < 3 && status.ok() && error == cudaSuccess; ++i) {
    error = rows->ForgetOutputs();
    if (error != cudaSuccess) break;
    step = parallel->BeginStep(rows->Info(Phase::kDecode), c.placement);
    if (!step.ok()) return step.status();
    error = cudaGraphLaunch(replay, rows->stream());
    status.Update(parallel->EndStep(*step));
    status.Update(group->Wait(rows->stream(), 20 * kSecond));
  }
  if (error != cudaSuccess) return absl::InternalError(cudaGetErrorString(error));
  return status;
}

/// Outputs of every rank.
inline std::vector<std::vector<float>> Run(const std::shared_ptr<const ExpertSource>& source,
                                           const Case& c, const RankGroup& group) {
  const int size = group.size();
  std::vector<std::unique_ptr<RankRows>> rows;
  for (int r = 0; r < size; ++r) {
    const bool own = c.placement == TokenPlacement::kPerRank;
    rows.push_back(std::make_unique<RankRows>(r, source->model(), c.rows, c.half,
                                              own ? RankBlock{r, size} : RankBlock{}));
  }
  const auto statuses = OnDevices(Text(c), size, [&](int r, auto&& note) -> absl::Status {
    note("makes its engine");
    auto parallel =
        ExpertParallel::Create(source, Options(r, c.rows, c.fraction), c.shards, group.rank(r));
    if (!parallel.ok()) return parallel.status();
    (*parallel)->SetExchange(c.exchange);
    note("runs a step");
    absl::Status status = EagerStep(parallel->get(), group.rank(r).get(), c, rows[r].get());
    if (status.ok() && c.graph) {
      note("captures a step and replays it");
      status = ReplayedSteps(parallel->get(), group.rank(r).get(), c, rows[r].get());
    }
    note("ends its engine");
    return status;
  });
  for (const absl::Status& status : statuses) UNSCOPED_INFO(status.ToString());
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  std::vector<std::vector<float>> outputs;
  for (auto& rank : rows) outputs.push_back(rank->Outputs());
  return outputs;
}

/// The ranks' blocks of each layer, in their order.
inline std::vector<float> Together(const std::vector<std::vector<float>>& outputs, int layers) {
  std::vector<float> all;
  for (int l = 0; l < layers; ++l) {
    for (const std::vector<float>& own : outputs) {
      const auto values = static_cast<ptrdiff_t>(own.size()) / layers;
      all.insert(all.end(), own.begin() + l * values, own.begin() + (l + 1) * values);
    }
  }
  return all;
}

/// As one engine, within `bound`; the same bits on every rank.
inline void CheckCase(const RankGroup& group, const std::shared_ptr<const ExpertSource>& source,
                      const Case& c, double bound) {
  CAPTURE(c.shards.size(), c.rows, c.routed, static_cast<int>(c.place), c.fraction, c.graph, c.half,
          c.exchange.bf16_rows);
  const std::vector<float> expected = OneEngine(source, 0, c.rows, c.routed, c.half);
  const auto outputs = Run(source, c, group);
  if (c.placement == TokenPlacement::kPerRank) {
    CHECK(Difference(Together(outputs, source->model().num_layers()), expected) < bound);
    return;
  }
  for (const std::vector<float>& output : outputs) {
    CHECK(Difference(output, expected) < bound);
    CHECK(output == outputs[0]);
  }
}

// One fp32 rounding for each addition that another order makes. Products of many rows are rounded
// to bf16 for each expert: two halves of one differ from the whole by the roundings of each.
constexpr double kBound = 4e-6, kOfHalves = 3.0 / 512;

}  // namespace moert::test

#endif  // MOERT_TESTS_GPU_RANK_RUN_H_
