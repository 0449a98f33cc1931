#include "moert/tools/warm_start.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/mutex.h"
#include "moert/expert_store.h"

namespace moert {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(1);
// The most rounds that a hint may take to have effect: it is applied by the next layer call.
constexpr int kPatience = 2000;

}  // namespace

struct WarmStart::Impl {
  struct Asked {
    ExpertKey key;
    int rounds = 0;
  };
  // Known residency of the layers within one round.
  using Seen = std::vector<std::optional<std::vector<Residency>>>;

  Impl(Engine* e, std::vector<ExpertKey> o, const WarmStartOptions& opts)
      : engine(e), order(std::move(o)), options(opts) {}

  const std::vector<Residency>& Look(Seen* seen, int layer) const {
    auto& entry = (*seen)[layer];
    if (!entry) entry = engine->ResidencyOf(layer).value_or(std::vector<Residency>());
    return *entry;
  }

  // Removes hints that have been fulfilled or given up; true while experts may still arrive.
  void Collect(Seen* seen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto done = [&](Asked& a) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const std::vector<Residency>& layer = Look(seen, a.key.layer);
      if (layer.empty()) return true;  // the engine cannot tell, for instance in a forked process
      const Residency r = layer[a.key.expert];
      if (r != Residency::kAbsent && r != Residency::kArriving) {
        ++stats.arrived;
        return true;
      }
      return ++a.rounds > kPatience;
    };
    asked.erase(std::remove_if(asked.begin(), asked.end(), done), asked.end());
  }

  // Whether a layer has free slots, counting experts on their way as present. Each layer gets an
  // even share of all slots, at most the default capacity, so that nothing is evicted.
  bool HasRoom(Seen* seen, int layer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const int64_t layers = engine->model().num_layers();
    const int64_t slots = engine->memory().slots;
    const std::vector<Residency>& states = Look(seen, layer);
    int64_t taken = 0;
    for (size_t e = 0; e < states.size(); ++e) taken += states[e] != Residency::kAbsent;
    for (const Asked& a : asked) {
      taken += a.key.layer == layer && states[a.key.expert] == Residency::kAbsent;
    }
    return taken < slots / layers + (layer < slots % layers ? 1 : 0);
  }

  /// If memory runs out, the cache is not filled further; nothing depends on it.
  bool Advance() noexcept {
    const MutexLock lock(&mu);
    try {
      stats.filling = Ask();
    } catch (...) {
      stats.filling = false;
    }
    return stats.filling;
  }

  bool Ask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    Seen seen(static_cast<size_t>(engine->model().num_layers()));
    Collect(&seen);
    while (next < order.size() && asked.size() < static_cast<size_t>(options.in_flight)) {
      const ExpertKey key = order[next++];
      const std::vector<Residency>& states = Look(&seen, key.layer);
      if (states.empty()) {
        next = order.size();
        break;
      }
      if (states[key.expert] != Residency::kAbsent) continue;
      if (!HasRoom(&seen, key.layer)) continue;
      const int32_t expert = key.expert;
      if (!engine->PrefetchHint(key.layer, {&expert, 1}).ok()) continue;
      ++stats.asked;
      asked.push_back({key, 0});
    }
    return next < order.size() || !asked.empty();
  }

  void Run() {
    while (true) {
      {
        const MutexLock lock(&ended_mu);
        if (!end) ended.WaitFor(&ended_mu, kPeriod);
        if (end) return;
      }
      if (!Advance()) return;
    }
  }

  Engine* const engine;
  const std::vector<ExpertKey> order;
  const WarmStartOptions options;
  Mutex mu;
  size_t next ABSL_GUARDED_BY(mu) = 0;           // in order
  std::vector<Asked> asked ABSL_GUARDED_BY(mu);  // not yet there
  WarmStartStats stats ABSL_GUARDED_BY(mu);
  Mutex ended_mu;
  CondVar ended;
  bool end ABSL_GUARDED_BY(ended_mu) = false;
  std::thread thread;
};

WarmStart::WarmStart(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<WarmStart>> WarmStart::Create(Engine* engine,
                                                             std::vector<ExpertKey> order,
                                                             WarmStartOptions options) try {
  if (engine == nullptr) return absl::InvalidArgumentError("engine: must not be null");
  if (options.in_flight < 1 || options.in_flight > 64) {
    return InvalidArgument("in_flight {}: must be in [1, 64]", options.in_flight);
  }
  const MoeModelSpec& model = engine->model();
  std::set<std::pair<int, int>> seen;
  std::vector<ExpertKey> unique;
  for (const ExpertKey& key : order) {
    if (key.layer < 0 || key.layer >= model.num_layers() || key.expert < 0 ||
        key.expert >= model.layers[key.layer].num_experts) {
      return InvalidArgument("layer {}, expert {}: the model has none such", key.layer, key.expert);
    }
    if (seen.emplace(key.layer, key.expert).second) unique.push_back(key);
  }
  auto impl = std::make_unique<Impl>(engine, std::move(unique), options);
  {
    const MutexLock lock(&impl->mu);
    impl->stats.filling = !impl->order.empty();
  }
  Impl* const shared = impl.get();
  // Complete before its thread runs, so that after a later failure the destructor joins the thread.
  std::unique_ptr<WarmStart> warm(new WarmStart(std::move(impl)));
  try {
    if (options.thread) shared->thread = std::thread([shared] { shared->Run(); });
  } catch (const std::system_error&) {
    return absl::ResourceExhaustedError("no thread to fill the fast tier with");
  }
  return warm;
} catch (...) {
  return ExceptionStatus("a warm start");
}

std::vector<ExpertKey> WarmStart::ByCounts(const std::vector<std::vector<int64_t>>& counts) {
  std::vector<std::tuple<double, int, int>> ranked;
  for (size_t l = 0; l < counts.size(); ++l) {
    double total = 0;
    for (const int64_t count : counts[l]) total += static_cast<double>(std::max<int64_t>(0, count));
    for (size_t e = 0; e < counts[l].size(); ++e) {
      if (counts[l][e] <= 0) continue;
      ranked.emplace_back(-static_cast<double>(counts[l][e]) / total, static_cast<int>(l),
                          static_cast<int>(e));
    }
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<ExpertKey> order;
  for (const auto& [share, layer, expert] : ranked) order.push_back({layer, expert});
  return order;
}

WarmStart::~WarmStart() {
  {
    const MutexLock lock(&impl_->ended_mu);
    impl_->end = true;
  }
  impl_->ended.NotifyAll();
  if (impl_->thread.joinable()) impl_->thread.join();
}

bool WarmStart::Advance() { return impl_->Advance(); }

WarmStartStats WarmStart::stats() const {
  const MutexLock lock(&impl_->mu);
  return impl_->stats;
}

}  // namespace moert
