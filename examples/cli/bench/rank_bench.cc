#include "cli/bench/rank_bench.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "cli/bench/rank_load.h"
#include "fmt/format.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr int64_t kTimeoutNs = int64_t{60} * 1'000'000'000;

/// A group whose ranks keep their parts to themselves. It waits as the true one does.
class NoExchange final : public Collectives {
 public:
  explicit NoExchange(std::unique_ptr<Collectives> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  absl::Status AllReduce(float*, int64_t, void*) override { return absl::OkStatus(); }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all, void* stream) override {
    // Outputs are gathered in place.
    const auto at = reinterpret_cast<uintptr_t>(mine), to = reinterpret_cast<uintptr_t>(all);
    if (at - to < static_cast<uintptr_t>(bytes * size())) return absl::OkStatus();
    return group_->AllGather(mine, bytes, all, stream);
  }
  absl::Status AllToAll(const void*, absl::Span<const int64_t>, void*, absl::Span<const int64_t>,
                        void*) override {
    return absl::OkStatus();
  }
  absl::Status Wait(void* stream, int64_t timeout_ns) override {
    return group_->Wait(stream, timeout_ns);
  }
  void Abort(const absl::Status& why) override { group_->Abort(why); }

 private:
  const std::unique_ptr<Collectives> group_;
};

/// One rank's run.
class Rank {
 public:
  Rank(const RankRun& run, size_t rank, RankHost* host, std::barrier<>* together)
      : run_(run), steps_(run.steps[rank % run.steps.size()]), host_(host), together_(together) {}

  absl::Status Open(int device) {
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<Collectives> joined, host_->Join());
    if (!run_.exchange) joined = std::make_unique<NoExchange>(std::move(joined));
    group_ = std::move(joined);
    EngineOptions options = run_.options;
    options.device = device;
    MOERT_ASSIGN_OR_RETURN(
        parallel_,
        run_.whole ? ExpertParallel::CreatePlaced(
                         run_.source, options, OwnersOf(run_.source->model(), run_.shards), group_)
                   : ExpertParallel::Create(run_.source, options, run_.shards, group_));
    parallel_->SetExchange(run_.sums);
    const GraphNeeds& needs = engine()->graph_needs();
    replays_ = run_.graph && host_->stream() != nullptr && needs.capturable &&
               (needs.max_rows == 0 || steps_[0].rows <= needs.max_rows);
    return absl::OkStatus();
  }

  absl::Status Steps() {
    for (size_t s = 0; s < steps_.size(); ++s) {
      MOERT_RETURN_IF_ERROR(host_->Place(steps_[s], run_.rows));
      if (s == 0 && replays_) MOERT_RETURN_IF_ERROR(Capture());
      if (s == run_.warm) before_ = engine()->stats();
      together_->arrive_and_wait();
      const auto begin = std::chrono::steady_clock::now();
      MOERT_RETURN_IF_ERROR(
          Step([&] { return replays_ ? host_->Replay() : Layers(); }, /*wait=*/true));
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      if (s >= run_.warm) step_ms_.push_back(took.count());
    }
    return absl::OkStatus();
  }

  /// On the rank's thread: ranks leave the group side by side, and graphs go before it.
  void Close() {
    if (parallel_ != nullptr) {
      stats_ = StatsSince(engine()->stats(), before_);
      split_ = parallel_->stats().split;
    }
    host_->DropCapture();
    parallel_.reset();
    group_.reset();
  }

  const std::vector<double>& step_ms() const { return step_ms_; }
  bool replayed() const { return replays_; }
  StepSplit split() const { return split_; }
  const EngineStats& stats() const { return stats_; }

 private:
  Engine* engine() { return parallel_->engine(); }

  template <typename Work>
  absl::Status Step(const Work& work, bool wait) {
    StepInfo info;
    info.phase = run_.phase;
    info.rows = steps_[0].rows;
    info.stream = host_->stream();
    MOERT_ASSIGN_OR_RETURN(step_, parallel_->BeginStep(info, run_.placement));
    absl::Status status = work();
    status.Update(parallel_->EndStep(step_));
    if (status.ok() && wait) status = group_->Wait(host_->stream(), kTimeoutNs);
    return status;
  }
  absl::Status Layers() {
    for (int l = 0; l < engine()->model().num_layers(); ++l) {
      const RoutedInput routing = host_->routing(l);
      MOERT_RETURN_IF_ERROR(parallel_->Forward(step_, l, host_->x(), &routing, host_->y()));
    }
    return absl::OkStatus();
  }
  absl::Status Capture() {
    // A first eager step loads every kernel.
    MOERT_RETURN_IF_ERROR(Step([&] { return Layers(); }, /*wait=*/true));
    return Step([&] { return host_->Capture([&] { return Layers(); }); }, /*wait=*/false);
  }

  const RankRun& run_;
  const absl::Span<const RoutedStep> steps_;
  RankHost* const host_;
  std::barrier<>* const together_;
  std::shared_ptr<Collectives> group_;
  std::unique_ptr<ExpertParallel> parallel_;
  bool replays_ = false;
  StepId step_ = 0;
  EngineStats before_, stats_;
  StepSplit split_ = StepSplit::kExperts;
  std::vector<double> step_ms_;
};

RankTimes Together(const std::vector<Rank>& ranks) {
  RankTimes times;
  times.step_ms.resize(ranks[0].step_ms().size());
  int64_t lookups = 0, hits = 0;
  double loaded = 0, cpu_computed = 0;
  for (const Rank& rank : ranks) {
    for (size_t s = 0; s < times.step_ms.size(); ++s) {
      times.step_ms[s] = std::max(times.step_ms[s], rank.step_ms()[s]);
    }
    const EngineStats& stats = rank.stats();
    lookups += stats.lookups;
    hits += stats.hits_resident + stats.hits_prefetched;
    loaded += static_cast<double>(stats.bytes_loaded);
    cpu_computed += static_cast<double>(stats.cpu_computed);
    times.pool_bytes = std::max(times.pool_bytes, stats.pool_bytes);
  }
  times.replayed = ranks[0].replayed();
  times.split = ranks[0].split();
  if (lookups > 0) times.hit_ratio = static_cast<double>(hits) / static_cast<double>(lookups);
  const auto steps = static_cast<double>(std::max<size_t>(1, times.step_ms.size()));
  times.loaded_bytes = loaded / steps;
  times.cpu_computed = cpu_computed / steps;
  return times;
}

}  // namespace

absl::StatusOr<RankTimes> TimeRanks(const RankRun& run, RankHosts* hosts) {
  const size_t size = hosts->ranks.size();
  std::barrier<> together(static_cast<ptrdiff_t>(size));
  std::vector<Rank> ranks;
  for (size_t r = 0; r < size; ++r) ranks.emplace_back(run, r, hosts->ranks[r].get(), &together);
  std::vector<absl::Status> statuses(size);
  const auto run_rank = [&](size_t r) {
    statuses[r] = ranks[r].Open(static_cast<int>(r));
    if (statuses[r].ok()) statuses[r] = ranks[r].Steps();
    together.arrive_and_drop();  // nobody waits for one that failed
    ranks[r].Close();
  };
  std::vector<std::jthread> threads(size);
  for (size_t r = 0; r < size; ++r) {
    try {
      threads[r] = std::jthread(run_rank, r);
    } catch (const std::exception& e) {
      statuses[r] =
          absl::ResourceExhaustedError(fmt::format("no thread for rank {}: {}", r, e.what()));
      together.arrive_and_drop();
    }
  }
  threads.clear();  // joins them
  for (const absl::Status& status : statuses) MOERT_RETURN_IF_ERROR(status);
  return Together(ranks);
}

}  // namespace moert::cli
