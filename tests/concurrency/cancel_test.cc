// Cancelling a step from another thread while its layer call waits for a read.
#include <condition_variable>
#include <mutex>
#include <thread>

#include "moert/engine.h"
#include "support/catch.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// Reads of experts wait until they are let through.
class GatedSource final : public SyntheticSource {
 public:
  explicit GatedSource(const SyntheticShape& shape) : SyntheticSource(shape) {}
  absl::Status ReadRecord(int l, int e, int v, absl::Span<std::byte> dst) const override {
    {
      std::unique_lock<std::mutex> lock(mu_);
      ++waiting_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
    }
    return SyntheticSource::ReadRecord(l, e, v, dst);
  }
  void WaitForReader() const {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void Open() const {
    const std::lock_guard<std::mutex> lock(mu_);
    open_ = true;
    changed_.notify_all();
  }
  int reads() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return waiting_;
  }

 private:
  mutable std::mutex mu_;
  mutable std::condition_variable changed_;
  mutable bool open_ = false;
  mutable int waiting_ = 0;
};

TEST_CASE("a cancelled step returns, and its engine goes on") {
  // 64 rows want all 16 experts; a quarter of them fits, so the call needs several waves of loads.
  const auto source = std::make_shared<GatedSource>(SyntheticShape{2, 16, 4, 64, 48, 0});
  EngineOptions options;
  options.budget = Budget::Fraction(0.125);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  test::HiddenProcess process(64, 5);
  std::vector<float> x = process.Next(64), y(x.size());
  const MatrixView in{x.data(), DType::kF32, 64, 64, 64};
  const MutableMatrixView out{y.data(), DType::kF32, 64, 64, 64};
  const auto step = (*engine)->BeginStep({Phase::kPrefill, 64});
  REQUIRE_OK(step.status());
  const auto next = (*engine)->BeginStep({Phase::kPrefill, 64});
  REQUIRE_OK(next.status());

  absl::Status result, queued;
  std::thread caller([&] { result = (*engine)->Forward(*step, 0, in, out); });
  source->WaitForReader();
  std::thread behind([&] { queued = (*engine)->Forward(*next, 1, in, out); });
  REQUIRE_OK((*engine)->CancelStep(*step));  // while the call holds the engine
  source->Open();
  caller.join();
  behind.join();
  CHECK(result.code() == absl::StatusCode::kCancelled);
  CHECK(source->reads() < 16 + 16);  // what had not begun was not begun
  REQUIRE_OK(queued);
  CHECK((*engine)->Forward(*step, 1, in, out).code() == absl::StatusCode::kCancelled);
  CHECK((*engine)->StepStatus(*step).code() == absl::StatusCode::kCancelled);
  CHECK((*engine)->EndStep(*step).code() == absl::StatusCode::kCancelled);
  CHECK((*engine)->CancelStep(*step).code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE_OK((*engine)->EndStep(*next));

  // Cancelled before it began.
  const auto third = (*engine)->BeginStep({Phase::kPrefill, 64});
  REQUIRE_OK((*engine)->CancelStep(*third));
  CHECK((*engine)->Forward(*third, 0, in, out).code() == absl::StatusCode::kCancelled);
  CHECK((*engine)->EndStep(*third).code() == absl::StatusCode::kCancelled);
  const auto fourth = (*engine)->BeginStep({Phase::kPrefill, 64});
  REQUIRE_OK((*engine)->Forward(*fourth, 0, in, out));
  REQUIRE_OK((*engine)->EndStep(*fourth));
}

TEST_CASE("hints and residency from other threads while layers run") {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{});
  EngineOptions options;
  options.budget = Budget::Fraction(0.5);
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  std::vector<float> expected;
  test::HiddenProcess process(64, 5), same(64, 5);
  for (int s = 0; s < 40; ++s) {
    REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, process.Next(1), 1, &expected));
  }
  std::atomic<bool> stop{false};
  std::thread hinting([&] {
    for (int i = 0; !stop; ++i) {
      const int32_t e = i % 8;
      if (!(*engine)->PrefetchHint(i % 3, {e}).ok()) std::abort();
      if (i % 16 == 0 && !(*engine)->ResidencyOf(i % 3).ok()) std::abort();
    }
  });
  std::vector<float> out;
  for (int s = 0; s < 40; ++s) {
    REQUIRE_OK(test::RunStep(engine->get(), Phase::kDecode, same.Next(1), 1, &out));
  }
  stop = true;
  hinting.join();
  CHECK(out == expected);
}

}  // namespace
}  // namespace moert
