// Steps of the soak: eager, recorded, and of engines that come and go.
#include <cstring>
#include <optional>
#include <random>

#include "moert/expert_store.h"
#include "soak.h"
#include "tests/support/relative_error.h"

namespace moert::soak {
namespace {

/// Rows of every layer on the device, and the step over them.
class Rows {
 public:
  Rows()
      : shape_(Shape()),
        layer_(static_cast<size_t>(kRows * shape_.hidden)),
        bytes_(layer_ * static_cast<size_t>(shape_.layers) * sizeof(float)),
        x_(bytes_),
        y_(bytes_) {}

  const Stream& stream() const { return stream_; }
  int layers() const { return shape_.layers; }
  StepInfo Info() const {
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = kRows;
    info.stream = stream_.get();
    return info;
  }
  void Set(const std::vector<float>& x) {
    stream_.Upload(x_.at<float>(), x.data(), bytes_);
    Own(cudaMemsetAsync(y_.at<float>(), 0xff, bytes_, stream_.get()));
  }
  absl::Status Forward(Step* step, int layer) {
    const size_t at = layer_ * static_cast<size_t>(layer);
    return step->Forward(layer,
                         {x_.at<float>(at), DType::kF32, kRows, shape_.hidden, shape_.hidden},
                         {y_.at<float>(at), DType::kF32, kRows, shape_.hidden, shape_.hidden});
  }
  bool Forward(Step* step) {
    for (int l = 0; l < layers(); ++l) {
      if (Failed(Forward(step, l), "Forward")) return false;
    }
    return true;
  }
  /// exact: the expected bits, not only near.
  void Check(const std::vector<float>& expected, bool exact = true) {
    std::vector<float> y(expected.size());
    stream_.Download(y.data(), y_.at<float>(), bytes_);
    counts.wrong += exact ? std::memcmp(y.data(), expected.data(), bytes_) != 0
                          : !(test::RelativeError(y, expected) < 5e-3);
  }

 private:
  const test::SyntheticShape shape_;
  const size_t layer_, bytes_;
  const Buffer x_, y_;
  const Stream stream_;
};

void SetBudget(Engine* engine, std::mt19937* random) {
  constexpr double kFractions[] = {0.25, 0.4, 0.6, 1.0};
  ++counts.budgets;
  (void)Failed(engine->SetBudget(Budget::Fraction(kFractions[(*random)() % 4])), "SetBudget");
}

/// An expert where it lies is the record that was read.
void Borrow(Engine* engine, Step* step, int layer, const test::SyntheticSource& records,
            const Stream& stream, std::mt19937* random) {
  const auto expert = static_cast<int32_t>((*random)() % static_cast<unsigned>(Shape().experts));
  std::vector<ExpertView> views;
  const auto lease = step->AcquireExperts(layer, absl::MakeConstSpan(&expert, 1), &views);
  if (Failed(lease.status(), "AcquireExperts")) return;
  ++counts.leases;
  const std::vector<std::byte>& record = records.record(layer, expert, 0);
  std::vector<std::byte> there(record.size());
  const absl::Status used = engine->UseLease(*lease, [&](absl::Span<const ExpertView> experts) {
    stream.Download(there.data(), experts[0].record, there.size());
    return absl::OkStatus();
  });
  if (!Failed(used, "UseLease")) counts.wrong += there != record;
  (void)Failed(engine->ReleaseExperts(*lease), "ReleaseExperts");
}

void Ask(Engine* engine, int layer) {
  (void)engine->stats();
  (void)Failed(engine->ResidencyOf(layer).status(), "ResidencyOf");
}

class Recording {
 public:
  ~Recording() { Drop(); }
  void Drop() {
    if (graph_ != nullptr) Own(cudaGraphExecDestroy(graph_));
    graph_ = nullptr;
  }
  void Record(Engine* engine, Rows* rows) {
    Drop();
    auto step = engine->Begin(rows->Info());
    if (Failed(step.status(), "Begin")) return;
    cudaGraph_t graph = nullptr;
    const cudaStream_t stream = rows->stream().get();
    // Other threads of the program allocate meanwhile.
    Own(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const bool whole = rows->Forward(&*step);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (whole) {
      Own(ended);
      Own(cudaGraphInstantiate(&graph_, graph, 0));
      ++counts.recordings;
    }
    if (graph != nullptr) Own(cudaGraphDestroy(graph));
    (void)Failed(step->End(), "End");
  }
  bool there() const { return graph_ != nullptr; }
  void Launch(const Stream& stream) const { Own(cudaGraphLaunch(graph_, stream.get())); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

void RunSteps(Engine* engine, const test::SyntheticSource& records, const Expected& expected,
              unsigned seed, bool budgets) {
  std::mt19937 random(seed);
  Rows rows;
  while (!stop) {
    const unsigned input = random() % kInputs;
    rows.Set(expected.x[input]);
    auto step = engine->Begin(rows.Info());
    if (Failed(step.status(), "Begin")) continue;
    bool whole = true;
    for (int l = 0; l < rows.layers() && whole; ++l) {
      whole = !Failed(rows.Forward(&*step, l), "Forward");
      const auto hint = static_cast<int32_t>(random() % static_cast<unsigned>(Shape().experts));
      switch (random() % 24) {
        case 0:
          Borrow(engine, &*step, l, records, rows.stream(), &random);
          break;
        case 1:
          (void)Failed(engine->PrefetchHint(l, absl::MakeConstSpan(&hint, 1)), "PrefetchHint");
          break;
        case 2:
          if (budgets) SetBudget(engine, &random);
          break;
        case 3:
          Ask(engine, l);
          break;
        case 4:
          ++counts.cancels;
          (void)Failed(engine->CancelStep(step->id()), "CancelStep");
          break;
        default:
          break;
      }
    }
    whole = !Failed(step->End(), "End") && whole;
    if (whole) rows.Check(expected.y[input]);
    counts.steps += whole;
    Own(cudaStreamSynchronize(rows.stream().get()));
  }
}

void RunReplays(Engine* engine, const Expected& expected, unsigned seed) {
  if (!engine->graph_needs().capturable) {
    (void)Failed(absl::InternalError("misses are not served"), "graph_safe");
    return;
  }
  std::mt19937 random(seed);
  const test::SyntheticSource records(Shape());
  Rows rows;
  Recording recording;
  while (!stop) {
    if (!recording.there() || random() % 256 == 0) recording.Record(engine, &rows);
    if (random() % 32 == 0) SetBudget(engine, &random);
    const unsigned input = random() % kInputs;
    rows.Set(expected.x[input]);
    auto step = engine->Begin(rows.Info());
    if (Failed(step.status(), "Begin")) continue;
    const bool replay = recording.there() && random() % 8 != 0;
    if (replay) recording.Launch(rows.stream());
    const bool whole = replay || rows.Forward(&*step);
    if (whole) rows.Check(expected.y[input], engine->exact());
    if (random() % 32 == 0) Borrow(engine, &*step, 1, records, rows.stream(), &random);
    if (random() % 64 == 0) Ask(engine, 2);
    (void)Failed(step->End(), "End");
    ++(replay ? counts.replays : counts.steps);
  }
  Own(cudaStreamSynchronize(rows.stream().get()));
}

void RunEngines(const Expected& expected, unsigned seed) {
  constexpr const char* kStrategies[] = {"on-demand", "fate", "on-demand+fate.prefetch",
                                         "resident"};
  const auto source = std::make_shared<test::SyntheticSource>(Shape());
  Rows rows;
  for (unsigned n = seed; !stop; ++n) {
    const bool whole = n % 4 == 3;
    auto engine =
        Open(source, kStrategies[n % 4], whole ? 1 : 0.5, n % 3 == 0 ? kAllRecords : kSomeRecords);
    if (Failed(engine.status(), "Create")) continue;
    Recording recording;
    if ((*engine)->graph_needs().capturable) recording.Record(engine->get(), &rows);
    rows.Set(expected.x[n % kInputs]);
    auto step = (*engine)->Begin(rows.Info());
    if (Failed(step.status(), "Begin")) continue;
    if (recording.there()) recording.Launch(rows.stream());
    if (recording.there() || rows.Forward(&*step)) rows.Check(expected.y[n % kInputs]);
    (void)Failed(step->End(), "End");
    Own(cudaStreamSynchronize(rows.stream().get()));
  }
}

}  // namespace moert::soak
