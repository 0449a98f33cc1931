// The host's side of experts that a device gives to the CPU (exec/cuda/cache/served_cpu.h), and the
// thread that answers: the test plays the device, and plain memory is what is pinned elsewhere.
#include "exec/cuda/cache/served_cpu.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/spin.h"
#include "exec/cuda/compute_fence.h"
#include "moert/thread_pool.h"
#include "support/catch.h"
#include "support/no_device.h"
#include "support/synthetic_source.h"

namespace moert::test {
namespace {

using cuda::CpuAnswer;
using cuda::CpuExperts;
using cuda::CpuJobMemory;
using cuda::ServedCpu;

constexpr int kExperts = 8, kTopK = 3;
constexpr int64_t kHidden = 64, kTokens = 5;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = 2;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  shape.hidden = kHidden;
  shape.intermediate = 48;
  return shape;
}

/// Its records lie where a device could read them.
class PinnedSource final : public SyntheticSource {
 public:
  explicit PinnedSource(bool weighted) : SyntheticSource(Shape()), spec_(SyntheticSource::model()) {
    for (MoeLayerSpec& layer : spec_.layers) layer.routing.weight_input = weighted;
    for (int l = 0; l < Shape().layers; ++l) {
      for (int e = 0; e < kExperts; ++e) {
        const std::vector<std::byte>& from = record(l, e, 0);
        auto* const to =
            static_cast<std::byte*>(std::aligned_alloc(4096, (from.size() + 4095) / 4096 * 4096));
        std::copy(from.begin(), from.end(), to);
        records_.emplace_back(to, &std::free);
      }
    }
  }
  const MoeModelSpec& model() const override { return spec_; }
  const std::byte* PinnedRecord(int layer, int expert, int /*version*/) const override {
    return records_[static_cast<size_t>(layer * kExperts + expert)].get();
  }

 private:
  MoeModelSpec spec_;
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> records_;
};

class Fixture {
 public:
  explicit Fixture(bool weighted = false) : source_(weighted) {
    pool_ = *CreateThreadPool({.threads = 2});
    gemm_ = *MixedGroupGemm::Create(pool_.get(), "auto", ActivationNumerics::kBF16);
    own_ = *MixedGroupGemm::Create(pool_.get(), "auto", ActivationNumerics::kBF16);
    auto served = ServedCpu::Create({.model = &source_.model(),
                                     .records = &records_,
                                     .gemm = gemm_.get(),
                                     .pool = pool_.get(),
                                     .profile = &profile_,
                                     .max_tokens = kTokens});
    REQUIRE_OK(served.status());
    served_ = *std::move(served);
    auto cpu = CpuExperts::Create(source_.model(), gemm_.get(), kTokens, kSpinAlone, {});
    REQUIRE_OK(cpu.status());
    cpu_ = *std::move(cpu);
    cpu_->Attach(served_.get());
  }

  /// Writes a job of drawn experts as the device does.
  void Post(int layer, std::mt19937* rng) {
    const CpuJobMemory& memory = served_->memory();
    REQUIRE(CpuIdle(*memory.mailbox, call_));
    layer_ = layer;
    x_ = SyntheticSource::RandomFloats(kTokens * kHidden, 1, &wide_);
    auto* x = reinterpret_cast<float*>(memory.x);
    std::copy(x_.begin(), x_.end(), x);
    slots_.clear();
    expert_of_.clear();
    weights_.clear();
    // A token's experts are distinct. Some slots are experts' that the device multiplies.
    std::vector<int32_t> drawn(kExperts + 4), owner;
    std::iota(drawn.begin(), drawn.end(), 0);
    for (int64_t token = 0; token < kTokens; ++token) {
      std::shuffle(drawn.begin(), drawn.end(), *rng);
      if (token == 0) std::iter_swap(drawn.begin(), std::find(drawn.begin(), drawn.end(), 2));
      owner.insert(owner.end(), drawn.begin(), drawn.begin() + kTopK);
    }
    int32_t experts = 0;
    for (int32_t e = 0; e < kExperts; ++e) {
      int32_t pairs = 0;
      for (size_t slot = 0; slot < owner.size(); ++slot) {
        if (owner[slot] != e) continue;
        const size_t at = slots_.size();
        slots_.push_back(static_cast<int32_t>(slot));
        expert_of_.push_back(e);
        weights_.push_back(0.25f + 0.01f * static_cast<float>(slot));
        memory.slots[at] = slots_.back();
        memory.weights[at] = weights_.back();
        ++pairs;
      }
      if (pairs > 0) memory.experts[experts++] = {e, pairs};
    }
    cuda::CpuJob& job = *memory.job;
    job.layer = layer;
    job.tokens = kTokens;
    job.cols = kHidden;
    job.dtype = static_cast<int32_t>(DType::kF32);
    job.experts = experts;
    job.pairs = pairs();
    PostJob(memory.mailbox, &call_, 0, 0);
  }
  bool Answered(std::chrono::milliseconds within) {
    const auto end = std::chrono::steady_clock::now() + within;
    CpuAnswer found = CpuAnswer::kNone;
    while (found == CpuAnswer::kNone && std::chrono::steady_clock::now() < end) {
      found = AnswerTo(*served_->memory().mailbox, call_.posted);
      std::this_thread::yield();
    }
    SettleJob(&call_, found);
    return found == CpuAnswer::kRows;
  }
  /// Rows of the answer that are not what each pair's expert makes of its token, alone.
  int WrongRows() {
    const bool weighted = source_.model().layers[0].routing.weight_input;
    AlignedArray<float> x(kHidden), out(kHidden);
    const std::vector<int32_t> zero{0};
    int wrong = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const int64_t token = slots_[i] / kTopK;
      for (int64_t c = 0; c < kHidden; ++c) {
        const float from = x_[static_cast<size_t>(token * kHidden + c)];
        x.data()[c] = weighted ? weights_[i] * from : from;
      }
      const ExpertProblem alone{source_.PinnedRecord(layer_, expert_of_[i], 0),
                                &source_.layout(layer_, expert_of_[i], 0),
                                source_.model().layers[0].activation, zero, zero};
      REQUIRE_OK(own_->Run(x.data(), 1, kHidden, {&alone, 1}, out.data()));
      const float* row = served_->memory().rows + i * kHidden;
      wrong += !std::equal(row, row + kHidden, out.data());
    }
    return wrong;
  }

  CpuExperts* cpu() { return cpu_.get(); }
  ServedCpu* served() { return served_.get(); }
  int pairs() const { return static_cast<int>(slots_.size()); }
  /// The caller's own job, as eager calls have it.
  void CheckCallersJob() {
    RoutingResult routing;
    routing.tokens = 1;
    routing.top_k = kTopK;
    routing.num_experts = kExperts;
    routing.ids = {1, 4, 6};
    routing.weights = {0.5f, 0.3f, 0.2f};
    routing.counts.assign(kExperts, 0);
    routing.offsets.assign(kExperts + 1, 0);
    routing.counts[4] = 1;
    routing.offsets[4] = 0;
    routing.grouped_tokens = {0};
    routing.grouped_slots = {1};
    AlignedArray<float> x(kHidden);
    for (int64_t c = 0; c < kHidden; ++c) x.data()[c] = 0.1f * static_cast<float>(c % 7);
    cpu_->SetRows(x.data(), 1, kHidden);
    const cuda::HostExpert expert{4, source_.PinnedRecord(0, 4, 0), &source_.layout(0, 4, 0)};
    cpu_->Begin(routing, {&expert, 1}, source_.model().layers[0]);
    int64_t took_ns = 0;
    REQUIRE_OK(cpu_->Join(&took_ns));
    CHECK(took_ns > 0);
    REQUIRE(cpu_->num_rows() == 1);
    CHECK(cpu_->slots()[0] == 1);
    cpu_->Forget();
  }

 private:
  PinnedSource source_;
  cuda::ComputeFence fence_;
  cuda::DeviceSource records_{&source_, 0, -1, 0, &fence_, nullptr};
  HardwareProfile profile_;
  std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<MixedGroupGemm> gemm_, own_;
  std::unique_ptr<ServedCpu> served_;
  std::unique_ptr<CpuExperts> cpu_;  // its thread answers the jobs of served_
  cuda::CpuCall call_;
  int layer_ = 0;
  std::mt19937_64 wide_{3};
  std::vector<float> x_;
  std::vector<int32_t> slots_, expert_of_;
  std::vector<float> weights_;
};

constexpr std::chrono::milliseconds kSoon{20000};

TEST_CASE("jobs of a device are answered with the rows of their pairs") {
  const bool weighted = GENERATE(false, true);
  INFO("weights multiply inputs: " << weighted);
  Fixture f(weighted);
  std::mt19937 rng(1);
  int pairs = 0;
  f.cpu()->Watch();
  for (int job = 0; job < 200; ++job) {
    f.Post(job % 2, &rng);
    REQUIRE(f.Answered(kSoon));
    CHECK(f.WrongRows() == 0);
    pairs += f.pairs();
  }
  CHECK(pairs > 500);
  ServedCount times;
  f.served()->TakeTimes(&times);
  CHECK(times.cpu_jobs == 200);
  CHECK(times.cpu_took_ns > 0);
  CHECK(times.cpu_modelled_ns > 0);
  f.served()->TakeTimes(&times);
  CHECK(times.cpu_took_ns == 0);
}

TEST_CASE("jobs of the device and of the caller take turns") {
  Fixture f;
  std::mt19937 rng(2);
  for (int i = 0; i < 100; ++i) {
    f.cpu()->Watch();
    f.Post(i % 2, &rng);
    if (i % 3 == 0) f.CheckCallersJob();
    REQUIRE(f.Answered(kSoon));
    CHECK(f.WrongRows() == 0);
    if (i % 3 == 1) f.CheckCallersJob();
  }
}

TEST_CASE("a thread that rests looks now and then, and one that sleeps is woken by a step") {
  Fixture f;
  std::mt19937 rng(3);
  f.cpu()->Watch();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // naps
  f.Post(0, &rng);
  CHECK(f.Answered(std::chrono::milliseconds(500)));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // sleeps
  f.Post(1, &rng);
  CHECK_FALSE(f.Answered(std::chrono::milliseconds(200)));
  f.cpu()->Watch();
  CHECK(f.Answered(kSoon));
  CHECK(f.WrongRows() == 0);
}

/// Answers again whatever leaves the scope.
class PausedCpu {
 public:
  PausedCpu() { ServedCpu::Pause(true); }
  ~PausedCpu() { ServedCpu::Pause(false); }
};

TEST_CASE("a thread that does not answer ends beside the job, and works for the caller") {
  std::mt19937 rng(4);
  const PausedCpu paused;
  Fixture f;
  f.cpu()->Watch();
  f.Post(0, &rng);
  CHECK_FALSE(f.Answered(std::chrono::milliseconds(100)));
  f.CheckCallersJob();
}

}  // namespace
}  // namespace moert::test
