// Misses of opaque records that device and CPU share: the host's kernel multiplies what is in
// slots, its product on the CPU the rest, and rows come together.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "opaque_device.h"
#include "tests/support/slow_link.h"

namespace moert::test {
namespace {

constexpr int kHidden = OpaqueModel::kHidden;
constexpr int64_t kAllRecords = 64 << 20;  // of a host budget

using Product = std::function<absl::Status(const OpaqueProduct&)>;

/// The product of every expert, and how often each was asked for on the CPU.
class Reference {
 public:
  explicit Reference(const OpaqueModel& model) {
    for (int l = 0; l < kLayers; ++l) {
      for (int e = 0; e < kE; ++e) of_[l][e] = static_cast<float>(Expected(model, l, e, kX));
    }
  }
  float Of(int layer, int expert) const { return of_[layer][expert]; }

  /// Over the bytes that it is given.
  absl::Status Multiply(const OpaqueProduct& job) {
    size_t pair = 0;
    for (const OpaqueProduct::Expert& expert : job.experts) {
      double x = kX;
      for (int p = 0; p < 3; ++p) {
        x = Toy(expert.parts[p], OpaqueModel::PartBytes(job.layer, p), x) * 1e-4;
      }
      for (int64_t i = 0; i < expert.pairs; ++i, ++pair) {
        const float* row = job.x + job.row_of[pair] * job.hidden;
        for (int64_t c = 0; c < job.hidden; ++c) {
          job.out[static_cast<int64_t>(pair) * job.hidden + c] = static_cast<float>(x) * row[c];
        }
        wrong_ += job.weights[pair] != 1.0f;
      }
      ++experts_;
    }
    wrong_ += pair != job.row_of.size() || job.pool->num_threads() < 1;
    return absl::OkStatus();
  }
  int64_t experts() const { return experts_; }
  int64_t wrong() const { return wrong_; }  // what jobs say

 private:
  float of_[kLayers][kE];
  std::atomic<int64_t> experts_{0}, wrong_{0};
};

std::shared_ptr<const ExpertSource> SourceOf(const OpaqueModel& model, Product product) {
  OpaqueWeights weights = model.InMemory();
  weights.product = std::move(product);
  return Source(model, std::move(weights));
}

EngineOptions SharingOptions(const char* strategy, double fraction) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = 8;
  options.host_budget = kAllRecords;
  options.profile = SlowLink();
  return options;
}

/// An engine whose profile has so slow a link that the CPU takes what finds no free slot.
std::unique_ptr<Engine> OpenShared(std::shared_ptr<const ExpertSource> source, const char* strategy,
                                   double fraction) {
  auto engine = Engine::Create(std::move(source), SharingOptions(strategy, fraction));
  REQUIRE_OK(engine.status());
  return *std::move(engine);
}

/// Device memory of a call.
struct Call {
  explicit Call(int64_t tokens)
      : tokens(tokens),
        ids(static_cast<size_t>(tokens * kK)),
        slots(static_cast<size_t>(tokens * kK)),
        x(static_cast<size_t>(tokens * kHidden)),
        rows(static_cast<size_t>(tokens * kK * kHidden)) {}
  MatrixView Input() const { return {x.get(), DType::kF32, tokens, kHidden, kHidden}; }
  MutableMatrixView Rows() const {
    return {rows.get(), DType::kF32, tokens * kK, kHidden, kHidden};
  }

  const int64_t tokens;
  DeviceArray<int32_t> ids, slots;
  DeviceArray<float> x, rows;
};

/// Fetch, the host's kernel, the CPU's rows. A layer call of a host.
absl::Status RunLayer(Engine* engine, StepId step, int layer, const Call& call,
                      const Stream& stream) {
  FetchInput input;
  input.place = Place::kDevice;
  input.ids = {call.ids.get(), static_cast<size_t>(call.tokens * kK)};
  input.slot_ids = {call.slots.get(), static_cast<size_t>(call.tokens * kK)};
  input.cpu_rows = call.Input();
  input.any_slot = true;
  SlotView view;
  absl::Status status = engine->Fetch(step, layer, input, &view);
  if (!status.ok()) return status;
  status =
      CudaOk(LaunchToyRows(WeightsOf(view), call.slots.get(), static_cast<int>(call.tokens * kK),
                           kK, call.x.get(), kHidden, call.rows.get(), stream.get()));
  status.Update(engine->TakeCpuRows(step, layer, call.Rows()));
  status.Update(engine->ReleaseFetched(step, layer));
  return status;
}

void Fill(Call* call, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(call->tokens * kHidden));
  for (float& value : x) value = normal(*random);
  call->x.Set(x);
  call->ids.Set(RandomIds(random, call->tokens));
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);  // filled on another stream
}

/// The largest difference to the products of all experts.
double Error(const Call& call, int layer, const Reference& reference) {
  const std::vector<float> rows = call.rows.Get(), x = call.x.Get();
  const std::vector<int32_t> ids = call.ids.Get();
  double worst = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t pair = i / kHidden;
    const float of = ids[pair] < 0 ? 0 : reference.Of(layer, ids[pair]);
    const double error = std::abs(rows[i] - of * x[pair / kK * kHidden + i % kHidden]);
    worst = std::max(worst, std::isnan(rows[i]) ? 1e9 : error);
  }
  return worst;
}

/// Whether the pairs of every token have slots of their own.
bool SlotsDiffer(const Call& call) {
  std::vector<int32_t> slots = call.slots.Get();
  const std::vector<int32_t> ids = call.ids.Get();
  for (size_t first = 0; first < slots.size(); first += kK) {
    std::set<int32_t> of_token;
    for (size_t i = first; i < first + kK; ++i) {
      if (ids[i] >= 0 && (slots[i] < 0 || !of_token.insert(slots[i]).second)) return false;
    }
  }
  return true;
}

constexpr double kRounding = 1e-5;

TEST_CASE("rows of device and CPU are those of all experts") {
  const OpaqueModel model;
  const Stream stream;
  for (const char* strategy : {"on-demand+importance.placement", "fate+importance.placement"}) {
    for (const int64_t tokens : {1, 3, 8}) {
      // A layer has up to 12 slots, or fewer than a call has ids.
      for (const double fraction : {0.3, 0.85}) {
        CAPTURE(strategy, tokens, fraction);
        Reference reference(model);
        const auto engine = OpenShared(
            SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
            strategy, fraction);
        CHECK_FALSE(engine->exact());
        std::mt19937 random(4);
        Call call(tokens);
        double worst = 0;
        bool differ = true;
        for (int s = 0; s < 60; ++s) {
          const auto step = Begin(engine.get(), tokens, stream);
          REQUIRE_OK(step.status());
          for (int l = 0; l < kLayers; ++l) {
            Fill(&call, &random);
            REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
            stream.Wait();
            worst = std::max(worst, Error(call, l, reference));
            differ = differ && SlotsDiffer(call);
          }
          REQUIRE_OK(engine->EndStep(*step));
        }
        CHECK(worst < kRounding);
        CHECK(differ);
        CHECK(reference.wrong() == 0);
        stream.Wait();
        const auto last = Begin(engine.get(), tokens, stream);  // takes the counts of those before
        REQUIRE_OK(last.status());
        REQUIRE_OK(engine->EndStep(*last));
        const EngineStats stats = engine->stats();
        CHECK(stats.cpu_computed == reference.experts());
        CHECK(stats.cpu_taken_back == 0);
        CHECK(stats.lookups == stats.hits_resident + stats.hits_prefetched + stats.late +
                                   stats.loads + stats.cpu_computed);
        CHECK(stats.cpu_computed > (fraction < 0.5 ? 50 : 5));
        CHECK(stats.peak_bytes <= stats.budget_bytes);
      }
    }
  }
}

TEST_CASE("no layer call waits on the host, whatever it names") {
  const OpaqueModel model;
  const Stream stream;
  for (const int64_t tokens : {1, 8}) {
    Reference reference(model);
    const auto engine = OpenShared(
        SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
        "fate+importance.placement", 0.3);
    std::mt19937 random(9);
    Call call(tokens);
    Fill(&call, &random);
    for (int s = 0; s < 40; ++s) {
      const auto step = Begin(engine.get(), tokens, stream);
      REQUIRE_OK(step.status());
      for (int l = 0; l < kLayers; ++l) REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
      REQUIRE_OK(engine->EndStep(*step));
    }
    stream.Wait();
    CHECK(engine->stats().host_syncs == 0);
  }
}

TEST_CASE("calls without an input for the CPU bring every miss") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  const auto engine =
      OpenShared(SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
                 "on-demand+importance.placement", 0.5);
  std::mt19937 random(9);
  Call call(1);
  for (int s = 0; s < 20; ++s) {
    const auto step = Begin(engine.get(), 1, stream);
    REQUIRE_OK(step.status());
    Fill(&call, &random);
    FetchInput input;
    input.place = Place::kDevice;
    input.ids = {call.ids.get(), static_cast<size_t>(call.tokens * kK)};
    input.slot_ids = {call.slots.get(), static_cast<size_t>(call.tokens * kK)};
    SlotView view;
    REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
    REQUIRE_OK(engine->TakeCpuRows(*step, 0, call.Rows()));  // nothing is owed
    REQUIRE_OK(engine->ReleaseFetched(*step, 0));
    REQUIRE_OK(engine->EndStep(*step));
    stream.Wait();
    const std::vector<int32_t> ids = call.ids.Get(), slots = call.slots.Get();
    for (size_t i = 0; i < ids.size(); ++i) CHECK((ids[i] < 0) == (slots[i] < 0));
  }
  CHECK(reference.experts() == 0);
}

TEST_CASE("a strategy that asks the CPU for opaque records without a product is refused") {
  const OpaqueModel model;
  const auto engine = Engine::Create(Source(model, model.InMemory()),
                                     SharingOptions("fate+importance.placement", 0.5));
  REQUIRE(absl::IsFailedPrecondition(engine.status()));
  CHECK(std::string(engine.status().message()).find("OpaqueWeights::product") != std::string::npos);
}

TEST_CASE("rows that are owed have to be taken before the release, in their own shape") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  const auto engine =
      OpenShared(SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
                 "on-demand+importance.placement", 0.5);
  std::mt19937 random(3);
  Call call(1);
  Fill(&call, &random);
  const auto step = Begin(engine.get(), 1, stream);
  REQUIRE_OK(step.status());
  FetchInput input;
  input.place = Place::kDevice;
  input.ids = {call.ids.get(), static_cast<size_t>(call.tokens * kK)};
  input.slot_ids = {call.slots.get(), static_cast<size_t>(call.tokens * kK)};
  input.cpu_rows = call.Input();
  SlotView view;
  input.cpu_rows.cols = kHidden - 1;
  CHECK(absl::IsInvalidArgument(engine->Fetch(*step, 0, input, &view)));
  input.cpu_rows.cols = kHidden;
  REQUIRE_OK(engine->Fetch(*step, 0, input, &view));
  CHECK(absl::IsFailedPrecondition(engine->ReleaseFetched(*step, 0)));
  MutableMatrixView rows = call.Rows();
  rows.rows = 1;
  CHECK(absl::IsInvalidArgument(engine->TakeCpuRows(*step, 0, rows)));
  rows = call.Rows();
  rows.dtype = DType::kBF16;
  CHECK(absl::IsInvalidArgument(engine->TakeCpuRows(*step, 0, rows)));
  REQUIRE_OK(engine->TakeCpuRows(*step, 0, call.Rows()));
  REQUIRE_OK(engine->TakeCpuRows(*step, 0, call.Rows()));  // nothing is owed any more
  REQUIRE_OK(engine->ReleaseFetched(*step, 0));
  REQUIRE_OK(engine->EndStep(*step));
}

/// Steps until one fails; what it says.
absl::Status UntilFailure(Engine* engine, const Stream& stream, Call* call, int* lost) {
  std::mt19937 random(6);
  for (int s = 0; s < 60; ++s) {
    const auto step = Begin(engine, call->tokens, stream);
    REQUIRE_OK(step.status());
    absl::Status status;
    for (int l = 0; l < kLayers && status.ok(); ++l) {
      Fill(call, &random);
      status = RunLayer(engine, *step, l, *call, stream);
      stream.Wait();
      const std::vector<float> rows = call->rows.Get();
      *lost += static_cast<int>(
          std::count_if(rows.begin(), rows.end(), [](float value) { return std::isnan(value); }));
    }
    const absl::Status ended = engine->EndStep(*step);
    if (!ended.ok()) return ended;
  }
  return absl::OkStatus();
}

TEST_CASE("a product that fails fails its step, and the engine goes on") {
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  std::atomic<int> fails{2};  // by a status and by an exception
  const auto engine = OpenShared(SourceOf(model,
                                          [&](const OpaqueProduct& job) -> absl::Status {
                                            const int left = fails.load();
                                            if (left > 0) --fails;
                                            if (left == 2) return absl::DataLossError("bad bytes");
                                            if (left == 1) throw std::bad_alloc();
                                            return reference.Multiply(job);
                                          }),
                                 "on-demand+importance.placement", 0.5);
  Call call(1);
  int lost = 0;
  const absl::Status by_status = UntilFailure(engine.get(), stream, &call, &lost);
  CHECK(absl::IsDataLoss(by_status));
  CHECK(std::string(by_status.message()).find("bad bytes") != std::string::npos);
  CHECK(std::string(by_status.message()).find("toy layer") != std::string::npos);
  CHECK(lost > 0);
  CHECK(absl::IsResourceExhausted(UntilFailure(engine.get(), stream, &call, &lost)));
  lost = 0;
  REQUIRE_OK(UntilFailure(engine.get(), stream, &call, &lost));
  CHECK(lost == 0);
  CHECK(reference.experts() > 0);
}

TEST_CASE("a product that does not end in time is an error, not a hang") {
  // 8 tokens name more than the layer has slots: what nobody can compute meanwhile is lost, too.
  const int64_t tokens = GENERATE(1, 8);
  const OpaqueModel model;
  const Stream stream;
  Reference reference(model);
  std::atomic<bool> slow{true};
  const auto engine = OpenShared(SourceOf(model,
                                          [&](const OpaqueProduct& job) {
                                            if (slow.exchange(false)) {
                                              std::this_thread::sleep_for(std::chrono::seconds(3));
                                            }
                                            return reference.Multiply(job);
                                          }),
                                 "on-demand+importance.placement", 0.3);
  Call call(tokens);
  int lost = 0;
  const absl::Status late = UntilFailure(engine.get(), stream, &call, &lost);
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(lost > 0);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // the late answer
  // Rows of later calls that were lost meanwhile are told by the next step.
  UntilFailure(engine.get(), stream, &call, &lost).IgnoreError();
  lost = 0;
  REQUIRE_OK(UntilFailure(engine.get(), stream, &call, &lost));
  CHECK(lost == 0);
}

TEST_CASE("engines come and go with jobs under way, and leave nothing") {
  const OpaqueModel model;
  const Stream stream;
  size_t first = 0;
  for (int life = 0; life < 4; ++life) {
    {
      Reference reference(model);
      const auto engine = OpenShared(
          SourceOf(model, [&](const OpaqueProduct& job) { return reference.Multiply(job); }),
          "fate+importance.placement", 0.5);
      std::mt19937 random(2);
      Call call(1);
      for (int s = 0; s < 10; ++s) {
        Fill(&call, &random);
        const auto step = Begin(engine.get(), 1, stream);
        REQUIRE_OK(step.status());
        for (int l = 0; l < kLayers; ++l) {
          REQUIRE_OK(RunLayer(engine.get(), *step, l, call, stream));
        }
        REQUIRE_OK(engine->EndStep(*step));
      }
    }
    size_t now = 0, total = 0;
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemGetInfo(&now, &total) == cudaSuccess);
    if (life == 0) first = now;
    CHECK(now >= first);
  }
}

}  // namespace
}  // namespace moert::test
