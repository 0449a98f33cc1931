#include "moert/parallel/parallel_replay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "moert/engine.h"
#include "moert/parallel/shard.h"
#include "moert/tools/env.h"
#include "parallel/placed_ids.h"
#include "replay/replay_loop.h"

namespace moert {
namespace {

absl::Status ReadRate(const JsonValue& json, const std::string& path, const char* name,
                      double least, double* value) {
  constexpr double kMost = 1e15;
  const auto field = json.Find(name);
  if (!field) return absl::OkStatus();
  const double read = field->is_number() ? field->AsDouble().value_or(-1) : -1;
  if (!(read >= least && read <= kMost)) {
    return InvalidArgument("{}: field '{}' must be a number in [{}, {}]", path, name, least, kMost);
  }
  *value = read;
  return absl::OkStatus();
}

/// The time of one call's exchange.
class ExchangeCost {
 public:
  ExchangeCost(const ParallelReplayOptions& options, const std::vector<Shard>& shards,
               const MoeModelSpec& model)
      : options_(options), model_(model), ranks_(options.gpus * options.nodes) {
    if (ranks_ == 1) return;
    owners_ = options.placement.owners;
    if (!owners_.empty()) return;
    for (size_t l = 0; l < model.layers.size(); ++l) {
      owners_.emplace_back(static_cast<size_t>(model.layers[l].num_experts));
      for (size_t r = 0; r < shards.size(); ++r) {
        const auto rank = static_cast<int32_t>(r);
        for (const int32_t e : shards[r].experts[l]) owners_[l][e] = {rank};
      }
    }
  }

  double Ns(const TraceCall& call) const {
    if (ranks_ == 1) return 0;
    return call.tokens <= options_.all_reduce_tokens ? AllReduceNs(call) : 2 * DispatchNs(call);
  }

 private:
  double RowBytes(const TraceCall& call) const {
    return static_cast<double>(model_.layers[call.layer].hidden * options_.element_bytes);
  }

  /// Within nodes each GPU ends with a part of the sum; these parts are summed across nodes, and
  /// the results are gathered within the nodes.
  double AllReduceNs(const TraceCall& call) const {
    const PeerLinks& links = options_.links;
    const double bytes = static_cast<double>(call.tokens) * RowBytes(call);
    const double gpus = options_.gpus, nodes = options_.nodes;
    double ns = 0;
    if (gpus > 1) {
      ns += static_cast<double>(links.peer_latency_ns) +
            1e9 * 2 * (gpus - 1) / gpus * bytes / links.peer_bytes_per_s;
    }
    if (nodes > 1) {
      ns += static_cast<double>(links.node_latency_ns) +
            1e9 * 2 * (nodes - 1) / nodes * bytes / gpus / links.node_bytes_per_s;
    }
    return ns;
  }

  /// The time to send rows from their ranks to the ranks that own their experts; the busiest rank
  /// counts.
  double DispatchNs(const TraceCall& call) const {
    const auto ranks = static_cast<size_t>(ranks_);
    std::vector<int64_t> near_out(ranks), near_in(ranks), far_out(ranks), far_in(ranks);
    const auto k = static_cast<int64_t>(call.ids.size()) / call.tokens;
    std::vector<uint8_t> chosen(ranks);
    const std::vector<std::vector<int32_t>>& of_layer = owners_[call.layer];
    for (int64_t t = 0; t < call.tokens; ++t) {
      const auto home = static_cast<size_t>(t * ranks_ / call.tokens);
      std::fill(chosen.begin(), chosen.end(), 0);
      for (int64_t j = 0; j < k; ++j) {
        const int32_t e = call.ids[t * k + j];
        if (e < 0) continue;
        const std::vector<int32_t>& owners = of_layer[e];
        chosen[owners[static_cast<size_t>(t) % owners.size()]] = 1;
      }
      for (size_t r = 0; r < ranks; ++r) {
        if (chosen[r] == 0 || r == home) continue;
        const auto gpus = static_cast<size_t>(options_.gpus);
        const bool near = r / gpus == home / gpus;
        ++(near ? near_out : far_out)[home];
        ++(near ? near_in : far_in)[r];
      }
    }
    const PeerLinks& links = options_.links;
    double busiest = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const auto near = static_cast<double>(std::max(near_out[r], near_in[r]));
      const auto far = static_cast<double>(std::max(far_out[r], far_in[r]));
      busiest = std::max(busiest, near / links.peer_bytes_per_s + far / links.node_bytes_per_s);
    }
    return static_cast<double>(options_.nodes > 1 ? links.node_latency_ns : links.peer_latency_ns) +
           1e9 * busiest * RowBytes(call);
  }

  const ParallelReplayOptions& options_;
  const MoeModelSpec& model_;
  const int ranks_;
  // [L][E]: the owners of each expert; empty for a single rank.
  std::vector<std::vector<std::vector<int32_t>>> owners_;
};

class ParallelReplayer final : public ReplayLoop {
 public:
  ParallelReplayer(std::vector<std::unique_ptr<Engine>> engines, const std::vector<Shard>& shards,
                   const ParallelReplayOptions& options)
      : ReplayLoop(options.replay),
        engines_(std::move(engines)),
        cost_(options, shards, engines_[0]->model()),
        steps_of_(engines_.size()),
        before_(engines_.size()) {
    if (options.placement.owners.empty()) return;
    for (size_t r = 0; r < engines_.size(); ++r) {
      placed_.push_back(std::make_unique<PlacedIds>(engines_[0]->model(), static_cast<int>(r),
                                                    /*device=*/nullptr));
      absl::Status status = placed_.back()->Set(options.placement);  // in host memory: OK
      status.IgnoreError();
    }
  }

  ParallelReplayResult Take() {
    for (size_t r = 0; r < engines_.size(); ++r) {
      result_.ranks.push_back(StatsSince(engines_[r]->stats(), before_[r]));
    }
    result_.whole = std::move(*result());
    result_.whole.stats = result_.ranks[0];
    if (mean_ms_ > 0) result_.imbalance = result_.compute_ms / mean_ms_;
    return std::move(result_);
  }

 private:
  absl::Status Begin(const StepInfo& info, const TraceCall& /*first*/) override {
    for (size_t r = 0; r < engines_.size(); ++r) {
      MOERT_ASSIGN_OR_RETURN(steps_of_[r], engines_[r]->BeginStep(info));
      now_ns_ = std::max(now_ns_, engines_[r]->now_ns());
    }
    begin_ns_ = now_ns_;
    return absl::OkStatus();
  }

  absl::Status Call(const TraceCall& call) override {
    const int64_t begin_ns = now_ns_ + options().host_ns;
    int64_t end_ns = begin_ns;
    double sum_ns = 0;
    for (size_t r = 0; r < engines_.size(); ++r) {
      Engine& engine = *engines_[r];
      RoutedInput input{call.ids, call.weights, call.scores, call.next_scores};
      if (!placed_.empty()) {
        MOERT_ASSIGN_OR_RETURN(input, placed_[r]->Keep(call.layer, call.tokens, input, nullptr));
      }
      // A rank that was done earlier has waited for the others.
      input.idle_before_ns = begin_ns - engine.now_ns();
      MOERT_RETURN_IF_ERROR(engine.ForwardRouted(steps_of_[r], call.layer, {}, input, {}));
      end_ns = std::max(end_ns, engine.now_ns());
      sum_ns += static_cast<double>(engine.now_ns() - begin_ns);
    }
    const double exchange_ns = cost_.Ns(call);
    now_ns_ = end_ns + std::llround(exchange_ns);
    if (!counts()) return absl::OkStatus();
    result_.exchange_ms += exchange_ns * 1e-6;
    result_.compute_ms += static_cast<double>(end_ns - begin_ns) * 1e-6;
    mean_ms_ += sum_ns / static_cast<double>(engines_.size()) * 1e-6;
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> End() override {
    for (size_t r = 0; r < engines_.size(); ++r) {
      MOERT_RETURN_IF_ERROR(engines_[r]->EndStep(steps_of_[r]));
    }
    return now_ns_ - begin_ns_;
  }

  void Forget() override {
    for (size_t r = 0; r < engines_.size(); ++r) before_[r] = engines_[r]->stats();
  }

  const std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<PlacedIds>> placed_;  // none: each expert has one owner
  const ExchangeCost cost_;
  ParallelReplayResult result_;  // `whole` is filled in at the end
  std::vector<StepId> steps_of_;
  std::vector<EngineStats> before_;
  int64_t now_ns_ = 0;  // of the group
  int64_t begin_ns_ = 0;
  double mean_ms_ = 0;
};

absl::Status Check(const MoeModelSpec& model, const ParallelReplayOptions& options) {
  constexpr int kMost = 1024;
  const auto check = [kMost](const char* name, int value) {
    if (value >= 1 && value <= kMost) return absl::OkStatus();
    return InvalidArgument("{} {}: must be in [1, {}]", name, value, kMost);
  };
  MOERT_RETURN_IF_ERROR(check("gpus", options.gpus));
  MOERT_RETURN_IF_ERROR(check("nodes", options.nodes));
  if (options.replay.recorded_times) {
    return absl::InvalidArgumentError("recorded times are those of one machine: use the profile's");
  }
  for (int l = 0; l < model.num_layers(); ++l) {
    const int experts = model.layers[l].num_experts;
    if (experts >= options.gpus * options.nodes) continue;
    return InvalidArgument("{} x {} GPUs, and layer {} has {} experts: each GPU needs one",
                           options.nodes, options.gpus, l, experts);
  }
  return absl::OkStatus();
}

/// Experts of each rank, which other ranks may own too.
absl::StatusOr<std::vector<Shard>> OwnedShards(const MoeModelSpec& model, int ranks,
                                               const ExpertPlacement& placement) {
  MOERT_RETURN_IF_ERROR(CheckPlacement(model, placement));
  if (placement.ranks != ranks) {
    return InvalidArgument("a placement of {} ranks for {} GPUs", placement.ranks, ranks);
  }
  std::vector<Shard> shards(ranks);
  if (ranks == 1) return shards;
  for (const auto& layer : placement.owners) {
    for (Shard& shard : shards) shard.experts.emplace_back();
    for (size_t e = 0; e < layer.size(); ++e) {
      for (const int32_t r : layer[e]) shards[r].experts.back().push_back(static_cast<int32_t>(e));
    }
  }
  for (size_t r = 0; r < shards.size(); ++r) shards[r].shared_experts = r == 0;
  return shards;
}

/// One shard per rank; with several ranks each has a list of experts.
absl::StatusOr<std::vector<Shard>> ShardsOf(const MoeModelSpec& model,
                                            const ParallelReplayOptions& options) {
  const int ranks = options.gpus * options.nodes;
  if (!options.placement.owners.empty()) return OwnedShards(model, ranks, options.placement);
  if (options.shards.empty()) {
    std::vector<Shard> shards;
    for (int r = 0; r < ranks; ++r) shards.push_back(ReplayShard(model, r, ranks));
    return shards;
  }
  if (static_cast<int>(options.shards.size()) != ranks) {
    return InvalidArgument("{} shards for {} GPUs", options.shards.size(), ranks);
  }
  for (const Shard& shard : options.shards) {
    if (ranks == 1 || (!shard.experts.empty() && shard.num_channels == 0)) continue;
    return absl::InvalidArgumentError("shards of a replay are lists of experts");
  }
  MOERT_RETURN_IF_ERROR(CheckShards(model, options.shards));
  return options.shards;
}

}  // namespace

Shard ReplayShard(const MoeModelSpec& model, int rank, int ranks) {
  Shard shard;
  if (ranks == 1) return shard;
  shard.shared_experts = rank == 0;
  for (const MoeLayerSpec& layer : model.layers) {
    std::vector<int32_t> own;
    for (int32_t e = rank; e < layer.num_experts; e += ranks) own.push_back(e);
    shard.experts.push_back(std::move(own));
  }
  return shard;
}

absl::StatusOr<PeerLinks> LoadPeerLinks(const std::string& path) try {
  PeerLinks links;
  if (path == "reference") return links;
  MOERT_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Read(Env::Default(), path));
  const JsonValue json = document.root();
  auto peer_ns = static_cast<double>(links.peer_latency_ns);
  auto node_ns = static_cast<double>(links.node_latency_ns);
  MOERT_RETURN_IF_ERROR(ReadRate(json, path, "peer_bytes_per_s", 1, &links.peer_bytes_per_s));
  MOERT_RETURN_IF_ERROR(ReadRate(json, path, "peer_latency_ns", 0, &peer_ns));
  MOERT_RETURN_IF_ERROR(ReadRate(json, path, "node_bytes_per_s", 1, &links.node_bytes_per_s));
  MOERT_RETURN_IF_ERROR(ReadRate(json, path, "node_latency_ns", 0, &node_ns));
  links.peer_latency_ns = std::llround(peer_ns);
  links.node_latency_ns = std::llround(node_ns);
  return links;
} catch (...) {
  return ExceptionStatus(path);
}

absl::StatusOr<ParallelReplayResult> ReplayParallel(TraceReader* trace,
                                                    std::shared_ptr<const ExpertSource> source,
                                                    EngineOptions engine,
                                                    const ParallelReplayOptions& options) try {
  const MoeModelSpec& model = source->model();
  MOERT_RETURN_IF_ERROR(Check(model, options));
  if (!(model == trace->header().model)) {
    return absl::InvalidArgumentError("replay: the source's model is not the trace's");
  }
  const int ranks = options.gpus * options.nodes;
  engine.clock = ClockKind::kVirtual;
  engine.simulate = true;
  engine.profile.prefill_token_ns /= ranks;
  std::vector<std::unique_ptr<Engine>> engines;
  MOERT_ASSIGN_OR_RETURN(const std::vector<Shard> shards, ShardsOf(model, options));
  for (const Shard& shard : shards) {
    engine.shard = shard;
    MOERT_ASSIGN_OR_RETURN(std::unique_ptr<Engine> made, Engine::Create(source, engine));
    engines.push_back(std::move(made));
  }
  ParallelReplayer replayer(std::move(engines), shards, options);
  MOERT_RETURN_IF_ERROR(replayer.Run(trace));
  return replayer.Take();
} catch (...) {
  return ExceptionStatus("replay");
}

}  // namespace moert
