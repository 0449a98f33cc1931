// A host with a store of its own: it keeps some experts in fast memory itself, and libmoert routes,
// decides which misses are loaded and which are computed where they lie, and multiplies. The result
// is compared, bit for bit, with an Engine's for the same input.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "moert/mixed_group_gemm.h"
#include "moert/router.h"
#include "moert/scheduler.h"
#include "moert/strategy.h"
#include "moert/thread_pool.h"
#include "tiny_model.h"

namespace {

/// The host's store: every record in slow memory, copies of those loaded last in fast memory.
class OwnStore {
 public:
  using Key = std::pair<int, int>;  // layer, expert

  absl::Status Fill(const moert::ExpertSource& source) {
    experts_ = source.model().layers[0].num_experts;
    total_ = static_cast<int>(source.model().total_experts());
    const size_t pages = source.layout(0, 0, 0).bytes / moert::kRecordAlignment + 1;
    bytes_ = pages * moert::kRecordAlignment;
    memory_.resize((total_ + kHeld + 1) * bytes_);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    base_ = memory_.data() + (moert::kRecordAlignment - address % moert::kRecordAlignment);
    for (int i = 0; i < total_; ++i) {
      auto status = source.ReadRecord(i / experts_, i % experts_, 0, {base_ + i * bytes_, bytes_});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  std::byte* Slow(Key key) const { return base_ + (key.first * experts_ + key.second) * bytes_; }
  std::byte* Fast(Key key) const {
    const auto it = std::find(held_.begin(), held_.end(), key);
    return it == held_.end() ? nullptr : base_ + (total_ + (it - held_.begin())) * bytes_;
  }
  void Load(Key key) {
    held_[next_] = key;
    std::copy_n(Slow(key), bytes_, base_ + (total_ + next_) * bytes_);
    next_ = (next_ + 1) % kHeld;
  }

 private:
  static constexpr int kHeld = 12;
  int experts_ = 0, total_ = 0, next_ = 0;
  size_t bytes_ = 0;  // of a record, rounded up
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  std::vector<Key> held_ = std::vector<Key>(kHeld, {-1, -1});
};

absl::StatusOr<std::vector<float>> Run(std::shared_ptr<const moert::ExpertSource> source) {
  const moert::MoeModelSpec& model = source->model();
  OwnStore store;
  if (auto s = store.Fill(*source); !s.ok()) return s;
  auto strategy = moert::MakeStrategy("importance");
  auto pool = moert::CreateThreadPool({.threads = 1});
  auto gates = tiny::Gates::Read(*source);
  if (!strategy.ok()) return strategy.status();
  if (!pool.ok()) return pool.status();
  if (!gates.ok()) return gates.status();
  auto router = moert::Router::Create(&model, gates->gates, gates->biases, pool->get());
  auto scheduler = moert::Scheduler::Create(strategy->placement.get(), {.measured = false});
  auto gemm =
      moert::MixedGroupGemm::Create(pool->get(), "reference", moert::ActivationNumerics::kF32);
  if (!router.ok()) return router.status();
  if (!scheduler.ok()) return scheduler.status();
  if (!gemm.ok()) return gemm.status();

  moert::RoutingResult routing;
  std::vector<float> outputs;
  alignas(64) float in[tiny::kHidden], out[2 * tiny::kHidden];
  for (int token = 0; token < tiny::kTokens; ++token) {
    std::vector<float> x = tiny::Input(token);
    for (int layer = 0; layer < model.num_layers(); ++layer) {
      if (auto s = (*router)->Route(layer, x.data(), 1, &routing); !s.ok()) return s;
      std::vector<moert::Miss> misses;
      for (const int32_t e : routing.ids) {
        const int64_t bytes = source->layout(layer, e, 0).bytes;
        if (!store.Fast({layer, e})) misses.push_back({.expert = e, .bytes = bytes, .cpu = true});
      }
      const auto placed =
          (*scheduler)->Place({&model, token, moert::Phase::kDecode, 0, layer}, misses);
      for (size_t i = 0; i < misses.size(); ++i) {
        if (placed.placements[i] == moert::Placement::kLoad) store.Load({layer, misses[i].expert});
      }
      std::vector<moert::ExpertProblem> problems;
      const int32_t row = 0, slots[] = {0, 1};
      for (size_t j = 0; j < routing.ids.size(); ++j) {
        const OwnStore::Key key{layer, routing.ids[j]};
        const std::byte* fast = store.Fast(key);
        moert::ExpertProblem& problem = problems.emplace_back();
        problem.record = fast != nullptr ? fast : store.Slow(key);
        problem.layout = &source->layout(layer, key.second, 0);
        problem.tokens = {&row, 1};
        problem.out_rows = {&slots[j], 1};
      }
      std::copy(x.begin(), x.end(), in);
      if (auto s = (*gemm)->Run(in, 1, tiny::kHidden, problems, out); !s.ok()) return s;
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] += routing.weights[0] * out[i] + routing.weights[1] * out[tiny::kHidden + i];
      }
    }
    outputs.insert(outputs.end(), x.begin(), x.end());
  }
  std::printf("%d computed where they lie\n", int((*scheduler)->stats().cpu_computed));
  return outputs;
}

}  // namespace

int main() { return tiny::CompareWithEngine(Run); }
