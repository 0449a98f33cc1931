#include "cli/bench/rank_host.h"

#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr int64_t kTimeoutNs = int64_t{60} * 1'000'000'000;

class HostRank final : public RankHost {
 public:
  explicit HostRank(std::unique_ptr<Collectives> group) : group_(std::move(group)) {}

  absl::StatusOr<std::unique_ptr<Collectives>> Join() override {
    if (group_ == nullptr) return absl::FailedPreconditionError("joined already");
    return std::move(group_);
  }
  absl::Status Place(const RoutedStep& step, DType dtype) override {
    if (dtype != DType::kF32) return absl::UnimplementedError("cpu: hidden states are f32");
    step_ = &step;
    y_.resize(step.hidden.size());
    return absl::OkStatus();
  }
  MatrixView x() const override {
    return {step_->hidden.data(), DType::kF32, step_->rows, cols(), cols()};
  }
  MutableMatrixView y() const override {
    return {y_.data(), DType::kF32, step_->rows, cols(), cols()};
  }
  RoutedInput routing(int layer) const override {
    RoutedInput routing;
    routing.ids = step_->ids[static_cast<size_t>(layer)];
    routing.weights = step_->weights[static_cast<size_t>(layer)];
    return routing;
  }
  void* stream() const override { return nullptr; }
  absl::Status Capture(absl::FunctionRef<absl::Status()>) override {
    return absl::UnimplementedError("nothing is captured in host memory");
  }
  absl::Status Replay() override { return absl::UnimplementedError("nothing was captured"); }
  void DropCapture() override {}

 private:
  int64_t cols() const { return static_cast<int64_t>(step_->hidden.size()) / step_->rows; }

  std::unique_ptr<Collectives> group_;
  const RoutedStep* step_ = nullptr;
  mutable std::vector<float> y_;
};

}  // namespace

absl::StatusOr<RankHosts> MakeHostRanks(int ranks, bool alone) {
  RankHosts hosts;
  hosts.device = "cpu";
  for (int groups = 0; groups < (alone ? ranks : 1); ++groups) {
    MOERT_ASSIGN_OR_RETURN(auto group, MakeThreadCollectives(alone ? 1 : ranks, kTimeoutNs));
    for (auto& rank : group) hosts.ranks.push_back(std::make_unique<HostRank>(std::move(rank)));
  }
  return hosts;
}

}  // namespace moert::cli
