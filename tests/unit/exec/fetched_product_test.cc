// The host's product over opaque records as a device asks for it
// (exec/cuda/fetch/fetched_product.h): the test plays the device, and plain memory is what is
// pinned elsewhere.
#include "exec/cuda/fetch/fetched_product.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/spin.h"
#include "exec/cuda/compute_fence.h"
#include "moert/thread_pool.h"
#include "support/catch.h"
#include "support/no_device.h"
#include "support/opaque_fixture.h"
#include "support/synthetic_source.h"

namespace moert::test {
namespace {

using cuda::CpuAnswer;
using cuda::CpuExperts;
using cuda::CpuJobMemory;
using cuda::FetchedProduct;

constexpr int kHidden = OpaqueModel::kHidden, kTopK = OpaqueModel::kTopK;
constexpr int kExperts = OpaqueModel::kExperts;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.layers = OpaqueModel::kLayers;
  shape.experts = kExperts;
  shape.top_k = kTopK;
  return shape;
}

/// The opaque records, where a device could read them.
class PinnedRecords final : public SyntheticSource {
 public:
  explicit PinnedRecords(const ExpertSource& from) : SyntheticSource(Shape()) {
    for (int l = 0; l < OpaqueModel::kLayers; ++l) {
      for (int e = 0; e < kExperts; ++e) {
        const auto bytes = static_cast<size_t>((from.layout(l, e, 0).bytes + 4095) / 4096 * 4096);
        auto* const to = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
        REQUIRE_OK(from.ReadRecord(l, e, 0, {to, bytes}));
        records_.emplace_back(to, &std::free);
      }
    }
  }
  const std::byte* PinnedRecord(int layer, int expert, int /*version*/) const override {
    return records_[static_cast<size_t>(layer * kExperts + expert)].get();
  }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> records_;
};

using Product = std::function<absl::Status(const OpaqueProduct&)>;

/// Where a job finds its records.
enum class Where { kPinned, kInMemory, kRead };

std::unique_ptr<ExpertSource> SourceOf(const OpaqueModel& model, Where where, Product product) {
  OpaqueWeights weights = where == Where::kRead ? model.ByCallback() : model.InMemory();
  for (std::vector<OpaquePart>& parts : weights.layers) {
    for (OpaquePart& part : parts) part.alignment = 1;
  }
  weights.product = std::move(product);
  auto source = MakeOpaqueSource("toy", model.spec, std::move(weights));
  REQUIRE_OK(source.status());
  return *std::move(source);
}

/// A row: the toy's product over the parts it is given, times the token's row.
absl::Status Multiply(const OpaqueProduct& job) {
  size_t pair = 0;
  for (const OpaqueProduct::Expert& expert : job.experts) {
    double x = 1;
    for (int p = 0; p < 3; ++p) {
      x = Toy(expert.parts[static_cast<size_t>(p)], OpaqueModel::PartBytes(job.layer, p), x) * 1e-4;
    }
    for (int64_t i = 0; i < expert.pairs; ++i, ++pair) {
      for (int64_t c = 0; c < job.hidden; ++c) {
        job.out[static_cast<int64_t>(pair) * job.hidden + c] =
            static_cast<float>(x) * job.x[job.row_of[pair] * job.hidden + c] * job.weights[pair];
      }
    }
  }
  return absl::OkStatus();
}

class Fixture {
 public:
  explicit Fixture(Product product, Where where = Where::kPinned)
      : source_(SourceOf(model_, where, std::move(product))),
        records_(
            where == Where::kPinned ? static_cast<const ExpertSource*>(&pinned_) : source_.get(), 0,
            /*host_budget=*/-1, /*pinned_limit=*/0, &fence_, nullptr) {
    if (where != Where::kPinned) REQUIRE_OK(records_.MoveByUse(0));
    pool_ = *CreateThreadPool({.threads = 2});
    auto made = FetchedProduct::Create({source_.get(), &records_, 0, &profile_, pool_.get(), 64});
    REQUIRE_OK(made.status());
    product_ = *std::move(made);
    CHECK(product_->max_tokens() == kMostCpuTokens);
    auto cpu = CpuExperts::Create(model_.spec, nullptr, 1, kSpinAlone, {});
    REQUIRE_OK(cpu.status());
    cpu_ = *std::move(cpu);
    cpu_->Attach(product_.get());
    cpu_->Watch();
  }

  /// Three pairs of two experts, of tokens 0 to 2, in halves of floats.
  void Post(int layer) {
    const CpuJobMemory& memory = product_->memory();
    REQUIRE(CpuIdle(*memory.mailbox, call_));
    auto* x = reinterpret_cast<uint16_t*>(memory.x);
    for (int i = 0; i < 3 * kHidden; ++i) x[i] = static_cast<uint16_t>(0x3f80 + 8 * (i % 5));
    memory.experts[0] = {3, 2};
    memory.experts[1] = {9, 1};
    for (const int i : {0, 1, 2}) {
      memory.slots[i] = kSlots[i];
      memory.weights[i] = kWeights[i];
    }
    *memory.job = {layer, 3, kHidden, static_cast<int32_t>(DType::kBF16), 2, 3};
    layer_ = layer;
    PostJob(memory.mailbox, &call_, 0, 0);
  }
  CpuAnswer Answer() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    CpuAnswer found = CpuAnswer::kNone;
    while (found == CpuAnswer::kNone && std::chrono::steady_clock::now() < end) {
      found = AnswerTo(*product_->memory().mailbox, call_.posted);
      std::this_thread::yield();
    }
    SettleJob(&call_, found);
    return found;
  }
  int WrongRows() const {
    int wrong = 0;
    for (int i = 0; i < 3; ++i) {
      const int token = kSlots[i] / kTopK;
      const auto of = static_cast<float>(Expected(model_, layer_, i < 2 ? 3 : 9, 1));
      for (int c = 0; c < kHidden; ++c) {
        const float x = 1 + 0.0625f * static_cast<float>((token * kHidden + c) % 5);
        wrong += product_->memory().rows[i * kHidden + c] != of * x * kWeights[i];
      }
    }
    return wrong;
  }
  FetchedProduct* product() { return product_.get(); }
  const OpaqueModel& model() const { return model_; }

 private:
  static constexpr int32_t kSlots[3] = {0, 5, 2};
  static constexpr float kWeights[3] = {1, 0.5f, 2};

  const OpaqueModel model_;
  const std::unique_ptr<ExpertSource> source_;
  const PinnedRecords pinned_{*source_};
  cuda::ComputeFence fence_;
  cuda::DeviceSource records_;
  HardwareProfile profile_;
  std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<FetchedProduct> product_;
  std::unique_ptr<CpuExperts> cpu_;  // its thread answers
  cuda::CpuCall call_;
  int layer_ = 0;
};

TEST_CASE("jobs of a device are answered with the rows of the host's product") {
  Fixture f(Multiply);
  for (int job = 0; job < 60; ++job) {
    f.Post(job % OpaqueModel::kLayers);
    REQUIRE(f.Answer() == CpuAnswer::kRows);
    CHECK(f.WrongRows() == 0);
  }
  REQUIRE_OK(f.product()->TakeFailure());
  ServedCount times;
  f.product()->TakeTimes(&times);
  CHECK(times.cpu_took_ns > 0);
  CHECK(times.cpu_modelled_ns > 0);
  f.product()->TakeTimes(&times);
  CHECK(times.cpu_took_ns == 0);
}

TEST_CASE("parts in the host's memory are multiplied there, others are read for the job") {
  const Where where = GENERATE(Where::kInMemory, Where::kRead);
  std::vector<const std::byte*> given;  // the parts of the second expert
  Fixture f(
      [&](const OpaqueProduct& job) {
        given.assign(job.experts[1].parts.begin(), job.experts[1].parts.end());
        return Multiply(job);
      },
      where);
  int64_t bytes = 0;
  for (int job = 0; job < 2; ++job) {
    f.Post(1);
    REQUIRE(f.Answer() == CpuAnswer::kRows);
    CHECK(f.WrongRows() == 0);
    for (int p = 0; p < 3; ++p) {
      CHECK((given[static_cast<size_t>(p)] == f.model().At(1, p, 9)) ==
            (where == Where::kInMemory));
    }
    bytes += f.product()->records()->TakeReadBytes();
  }
  CHECK((bytes == 0) == (where == Where::kInMemory));
  REQUIRE_OK(f.product()->TakeFailure());
}

TEST_CASE("a product that fails or throws has no rows, and its error is kept once") {
  int job = 0;
  Fixture f([&](const OpaqueProduct& product) -> absl::Status {
    ++job;
    if (job == 1) return absl::DataLossError("bad bytes");
    if (job == 2) throw std::bad_alloc();
    return Multiply(product);
  });
  f.Post(1);
  CHECK(f.Answer() == CpuAnswer::kNoRows);
  const absl::Status failed = f.product()->TakeFailure();
  CHECK(absl::IsDataLoss(failed));
  CHECK(std::string(failed.message()) == "toy layer 1: product on the CPU: bad bytes");
  REQUIRE_OK(f.product()->TakeFailure());
  f.Post(0);
  CHECK(f.Answer() == CpuAnswer::kNoRows);
  CHECK(absl::IsResourceExhausted(f.product()->TakeFailure()));
  f.Post(2);
  CHECK(f.Answer() == CpuAnswer::kRows);
  CHECK(f.WrongRows() == 0);
  REQUIRE_OK(f.product()->TakeFailure());
}

}  // namespace
}  // namespace moert::test
