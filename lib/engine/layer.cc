// The path of a token batch through one MoE layer.
#include "engine/layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/status_macros.h"
#include "fmt/format.h"
#include "plan/transfer_version.h"

namespace moert {

absl::Status LayerRunner::Forward(LayerCall call, float* out) {
  recorded_ = call.routed == nullptr ? nullptr : call.routed->times;
  if (call.routed != nullptr) Charge(static_cast<double>(call.routed->idle_before_ns));
  call.context.now_ns = parts_.clock->now_ns();
  times_ = {call.step_begin_ns, call.context.now_ns};
  const int64_t stalled_ns = stats_.stalled_ns();
  parts_.store->BeginLayerCall();
  parts_.store->Pump();

  if (parts_.device != nullptr) {
    MOERT_ASSIGN_OR_RETURN(const bool done, TryResident(call));
    if (done) return absl::OkStatus();
  }
  MOERT_RETURN_IF_ERROR(Route(call));
  Plan(call);
  times_.route_ns = parts_.clock->now_ns() - times_.begin_ns;
  Span(call, TimelineTrack::kLayers, "route", times_.begin_ns);
  const int64_t cpu_done_ns = parts_.clock->now_ns() + plan_.cpu_ns;
  absl::Status status = FetchAndMultiply(call);
  // Also behind a failure: the CPU reads and writes what the next call does.
  if (!plan_.cpu.empty()) status.Update(JoinCpu(call, cpu_done_ns));
  if (!status.ok()) return status;
  const int64_t combine_ns = parts_.clock->now_ns();
  if (parts_.device != nullptr) {
    MOERT_RETURN_IF_ERROR(parts_.device->Combine(call.device, routing_));
  } else if (!parts_.simulate) {
    Combine(call, out);
  }

  if (parts_.versions == nullptr) {
    parts_.store->EndLayerCall(call.context);
    Upgrade(call);
    parts_.scheduler->Backfill(call.context, plan_);
  }
  Charge(static_cast<double>(
      recorded_ != nullptr
          ? recorded_->other_ns()
          : parts_.profile->LayerNs(call.context.phase == Phase::kPrefill, call.tokens)));
  Span(call, TimelineTrack::kLayers, "combine", combine_ns);
  times_.end_ns = parts_.clock->now_ns();
  times_.stalled_ns = stats_.stalled_ns() - stalled_ns;
  parts_.prefetcher->EndCall(call.context, call.tokens, times_.end_ns);
  if (parts_.trace != nullptr) {
    parts_.trace->OnCall({call.context.step, call.context.phase, call.context.layer, call.tokens,
                          call.context.request_ids, routing_.ids, routing_.weights, routing_.scores,
                          routing_.next_scores, times_});
  }
  return absl::OkStatus();
}

void LayerRunner::Upgrade(const LayerCall& call) {
  PrecisionPolicy* precision = Precision();
  if (precision == nullptr) return;
  for (int32_t e = 0; e < routing_.num_experts; ++e) {
    const ExpertKey key{call.context.layer, e};
    if (routing_.counts[e] == 0) continue;
    const int version = parts_.store->Latest(key).version;
    if (version <= 0) continue;
    const int better =
        TransferVersion(precision, call.context, key, routing_.counts, /*prefetch=*/false,
                        parts_.store->num_versions(), &stats_.policy_fallbacks, version);
    if (better < version) (void)parts_.store->Reload(key, better, LoadReason::kBackground);
  }
}

absl::Status LayerRunner::JoinCpu(const LayerCall& call, int64_t done_ns) {
  const int64_t begin_ns = parts_.clock->now_ns();
  absl::Status status;
  if (parts_.device != nullptr) {
    int64_t took_ns = 0;
    status = parts_.device->JoinCpu(call.device, &took_ns);
    if (status.ok()) parts_.scheduler->ObserveCpuTime(plan_, took_ns);
  }
  Charge(static_cast<double>(done_ns - begin_ns));
  const int64_t waited_ns = parts_.clock->now_ns() - begin_ns;
  if (waited_ns == 0) return status;
  stats_.stall_cpu_ns += waited_ns;
  parts_.prefetcher->WaitedForCpu(waited_ns);
  Span(call, TimelineTrack::kStalls, "wait for the CPU", begin_ns);
  return status;
}

void LayerRunner::Charge(double ns) {
  if (parts_.virtual_clock == nullptr || !(ns > 0)) return;
  parts_.virtual_clock->AdvanceTo(parts_.clock->now_ns() + std::llround(ns));
}

void LayerRunner::Span(const LayerCall& call, TimelineTrack track, absl::string_view name,
                       int64_t begin_ns) {
  if (parts_.trace == nullptr) return;
  parts_.trace->OnSpan(
      {track, name, begin_ns, parts_.clock->now_ns(), call.context.step, call.context.layer});
}

absl::Status LayerRunner::Route(const LayerCall& call) {
  const PolicyContext& context = call.context;
  const RoutingRule rule =
      parts_.strategy->routing ? parts_.strategy->routing->Rule(context) : RoutingRule{};
  const LayerResidency residency = parts_.store->Layer(context.layer);
  if (call.routed == nullptr) {
    const bool next_gate =
        (parts_.prefetcher->wants_next_gate(context.phase) && !WantsForward(call)) ||
        (parts_.trace != nullptr && parts_.trace->wants_next_scores());
    MOERT_RETURN_IF_ERROR(parts_.device != nullptr
                              ? RouteOnDevice(call, rule, residency, next_gate)
                              : parts_.router->Route(context.layer, call.x, call.tokens, rule,
                                                     residency, context.request_ids, next_gate,
                                                     &routing_));
  } else {
    const RoutedInput& given = *call.routed;
    MOERT_RETURN_IF_ERROR(parts_.router->RouteGiven(
        context.layer, call.tokens, given.ids, given.weights, given.scores, given.next_scores, rule,
        residency, context.request_ids, &routing_));
    if (parts_.device != nullptr) {
      MOERT_RETURN_IF_ERROR(parts_.device->SetRouting(call.device, routing_));
    }
    if (!given.used_ids.empty()) {
      if (given.used_ids.size() != routing_.ids.size()) {
        return absl::InvalidArgumentError("used_ids: must have the size of ids");
      }
      std::copy(routing_.ids.begin(), routing_.ids.end(), given.used_ids.begin());
    }
  }
  if (recorded_ == nullptr && parts_.prefetcher->wants_next_gate(context.phase)) {
    Charge(static_cast<double>(parts_.profile->next_gate_ns));
  }
  if (recorded_ != nullptr) {
    Charge(static_cast<double>(recorded_->route_ns));
    recorded_bytes_ = 0;
    for (int32_t e = 0; e < routing_.num_experts; ++e) {
      if (routing_.counts[e] == 0) continue;
      recorded_bytes_ += static_cast<double>(parts_.store->layout({context.layer, e}, 0).bytes);
    }
    if (parts_.shared_records[context.layer] != nullptr) {
      recorded_bytes_ +=
          static_cast<double>((*parts_.constants)[context.layer].shared_layout.bytes);
    }
  }
  parts_.router->Count(routing_);
  return absl::OkStatus();
}

void LayerRunner::Plan(const LayerCall& call) {
  const PolicyContext& context = call.context;
  // What was predicted for this layer and has not started moving is forgotten before the misses are
  // known, so that a demand load never waits behind a wrong guess.
  PolicyContext known = context;
  known.now_ns = parts_.clock->now_ns();
  parts_.prefetcher->Resolve(known, routing_);
  parts_.residency->Observe(LayerEvent::Routed(context, routing_.view()));
  if (parts_.versions != nullptr) parts_.versions->OnRouting(context, routing_.view());
  parts_.scheduler->Plan(context, call.epoch, routing_, &plan_);
}

absl::Status LayerRunner::FetchAndMultiply(const LayerCall& call) {
  const PolicyContext& context = call.context;
  wave_ = plan_.ready;
  flying_.clear();
  auto next = plan_.load.begin();
  bool first_wave = true;
  bool predicted = false;
  bool forward = WantsForward(call);  // to be done, after the first wave
  forward_predicted_ = false;
  absl::Status failure;
  if (!plan_.cpu.empty() && parts_.device != nullptr) {
    failure = parts_.device->BeginCpu(call.device, routing_, plan_.cpu, parts_.best_version);
  }
  while (true) {
    if (failure.ok() && call.cancelled->load(std::memory_order_relaxed)) {
      failure = absl::CancelledError("the step was cancelled");
    }
    // As many loads as there are blocks: the rest follows when this wave frees some.
    while (failure.ok() && next != plan_.load.end()) {
      constexpr size_t kStreamWidth = 2;  // keeps the link busy while one is multiplied
      const LoadHint hint{routing_.counts[*next], !wave_.empty() || !flying_.empty(),
                          flying_.size() >= kStreamWidth};
      const ExpertKey key{context.layer, *next};
      const int version =
          TransferVersion(Precision(), context, key, routing_.counts, /*prefetch=*/false,
                          parts_.store->num_versions(), &stats_.policy_fallbacks);
      if (!parts_.store->StartLoad(key, version, LoadReason::kDemand, context, hint)) break;
      // A late prefetch may have landed since the plan was made. It is claimed at once: unpinned,
      // it could be evicted for the next load.
      if (!Claim(call, *next)) flying_.push_back(*next);
      ++next;
    }
    const bool all_queued = next == plan_.load.end();
    if (all_queued && !predicted && !forward) {
      CountPrediction(call);
      parts_.prefetcher->Predict(context, routing_, parts_.clock->now_ns());
      predicted = true;
    }
    if (first_wave || !wave_.empty()) {
      const std::vector<int32_t> computed = forward ? wave_ : std::vector<int32_t>{};
      absl::Status status = Multiply(call, first_wave);
      first_wave = false;
      if (status.ok() && forward) status = PredictForward(call, computed);
      forward = false;
      if (failure.ok()) failure = status;
      continue;
    }
    if (flying_.empty() && (all_queued || !failure.ok())) return failure;
    const int64_t begin_ns = parts_.clock->now_ns();
    if (!parts_.store->Wait()) {
      return absl::ResourceExhaustedError("no block of the budget is free for a missing expert");
    }
    const absl::Status status = CollectArrived(call);
    if (failure.ok()) failure = status;
    CountStall(call, begin_ns);
  }
}

absl::Status LayerRunner::CollectArrived(const LayerCall& call) {
  absl::Status failure;
  auto arrived = std::stable_partition(flying_.begin(), flying_.end(), [&](int32_t e) {
    return parts_.store->Arriving({call.context.layer, e});
  });
  for (auto it = arrived; it != flying_.end(); ++it) {
    if (Claim(call, *it)) continue;
    absl::Status status = parts_.store->TakeFailure({call.context.layer, *it});
    if (status.ok()) {
      status = absl::InternalError(
          fmt::format("expert {} of layer {} arrived and is gone", *it, call.context.layer));
    }
    if (failure.ok()) failure = status;
  }
  flying_.erase(arrived, flying_.end());
  return failure;
}

bool LayerRunner::Claim(const LayerCall& call, int32_t expert) {
  const ExpertKey key{call.context.layer, expert};
  if (parts_.store->Resolve(key, call.epoch).record == nullptr) return false;
  parts_.store->Touch(key, routing_.counts[expert]);
  parts_.store->Pin(key);
  wave_.push_back(expert);
  return true;
}

void LayerRunner::CountStall(const LayerCall& call, int64_t begin_ns) {
  // What the last arrival spent on the link is the miss itself; the rest of the wait it stood in
  // line.
  const int64_t waited = parts_.clock->now_ns() - begin_ns;
  int64_t moved = 0;
  for (const int32_t e : wave_) {
    moved = std::max(moved, parts_.store->moved_ns({call.context.layer, e}));
  }
  stats_.stall_miss_ns += std::min(waited, moved);
  stats_.stall_queue_ns += waited - std::min(waited, moved);
  parts_.prefetcher->WaitedForLoads(begin_ns, begin_ns + waited);
  Span(call, TimelineTrack::kStalls, "wait for experts", begin_ns);
}

double LayerRunner::WaveNs(bool first) const {
  double ns = 0, bytes = 0;
  for (size_t i = 0; i < problems_.size(); ++i) {
    const ExpertProblem& problem = problems_[i];
    bytes += static_cast<double>(problem.layout->bytes);
    const int version = problem_versions_[i];
    ns +=
        parts_.profile->ExpertNs(problem.layout->bytes, static_cast<int64_t>(problem.tokens.size()),
                                 version < 0 ? absl::string_view() : parts_.version_names[version]);
  }
  if (recorded_ == nullptr) {
    if (problems_.empty()) return 0;
    return ns +
           static_cast<double>(parts_.profile->wave_ns + (first ? 0 : parts_.profile->wake_ns));
  }
  return static_cast<double>(recorded_->multiply_ns) * bytes / std::max(recorded_bytes_, 1.0);
}

absl::Status LayerRunner::Multiply(const LayerCall& call, bool first) {
  const int layer = call.context.layer;
  const MoeLayerSpec& spec = parts_.model->layers[layer];
  problems_.clear();
  problem_versions_.clear();
  for (const int32_t e : wave_) {
    const ExpertHandle handle = parts_.store->Resolve({layer, e}, call.epoch);
    problem_versions_.push_back(handle.version);
    const int32_t begin = routing_.offsets[e];
    const int32_t count = routing_.counts[e];
    problems_.push_back({handle.record, handle.layout, spec.activation,
                         absl::MakeConstSpan(routing_.grouped_tokens).subspan(begin, count),
                         absl::MakeConstSpan(routing_.grouped_slots).subspan(begin, count)});
  }
  const LayerConstants& constants = (*parts_.constants)[layer];
  const std::byte* shared_record = parts_.shared_records[layer];
  if (first && shared_record != nullptr) {
    // The shared expert is one more problem of the grouped GEMM; its rows follow the routed slots.
    const int64_t pairs = call.tokens * routing_.top_k;
    for (int64_t t = 0; t < call.tokens; ++t) shared_rows_[t] = static_cast<int32_t>(pairs + t);
    problem_versions_.push_back(-1);
    problems_.push_back({shared_record, &constants.shared_layout, spec.activation,
                         absl::MakeConstSpan(all_tokens_).first(call.tokens),
                         absl::MakeConstSpan(shared_rows_).first(call.tokens)});
  }
  const int64_t begin_ns = parts_.clock->now_ns();
  absl::Status status;
  if (parts_.device != nullptr) {
    handles_.clear();
    for (const int32_t e : wave_) {
      handles_.push_back({e, parts_.store->Resolve({layer, e}, call.epoch)});
    }
    status = parts_.device->Multiply(call.device, routing_, handles_, first);
  } else if (!parts_.simulate) {
    status = parts_.gemm->Run(call.x, call.tokens, spec.hidden, problems_, slots_.data());
  }
  if (parts_.virtual_clock != nullptr) Charge(WaveNs(first));
  times_.multiply_ns += parts_.clock->now_ns() - begin_ns;
  if (!problems_.empty()) Span(call, TimelineTrack::kLayers, "multiply", begin_ns);
  for (const int32_t e : wave_) parts_.store->Unpin({layer, e});
  wave_.clear();
  return status;
}

float LayerRunner::SharedWeight(const LayerCall& call, int64_t t) const {
  const std::vector<float>& gate = (*parts_.constants)[call.context.layer].shared_gate;
  if (gate.empty()) return 1;
  const int64_t hidden = static_cast<int64_t>(gate.size());
  double dot = 0;
  for (int64_t i = 0; i < hidden; ++i) dot += call.x[t * hidden + i] * gate[i];
  return static_cast<float>(1 / (1 + std::exp(-dot)));
}

void LayerRunner::Combine(const LayerCall& call, float* out) {
  const int layer = call.context.layer;
  const int64_t tokens = call.tokens;
  const int64_t hidden = parts_.model->layers[layer].hidden;
  const int k = routing_.top_k;
  parts_.pool->Run(tokens, [&](int64_t t, int) {
    const float shared_weight = SharedWeight(call, t);
    float* row = out + t * hidden;
    // In k order, whatever the order of arrival.
    const float* slot = slots_.data() + t * k * hidden;
    for (int64_t i = 0; i < hidden; ++i) row[i] = routing_.weights[t * k] * slot[i];
    for (int j = 1; j < k; ++j) {
      const float weight = routing_.weights[t * k + j];
      for (int64_t i = 0; i < hidden; ++i) row[i] += weight * slot[j * hidden + i];
    }
    if (parts_.shared_records[layer] != nullptr) {
      const float* shared = slots_.data() + (tokens * k + t) * hidden;
      for (int64_t i = 0; i < hidden; ++i) row[i] += shared_weight * shared[i];
    }
  });
}

int64_t LayerRunner::WorkspaceBytes(const MoeModelSpec& model, int64_t max_tokens,
                                    bool resident_forward) {
  int64_t bytes = 0;
  for (const MoeLayerSpec& layer : model.layers) {
    const int64_t k = layer.routing.top_k;
    const int64_t slot_rows = max_tokens * (k + 1);
    // Slots; ids, weights and two groupings of each pair; scores and logits of this and the next
    // layer.
    bytes = std::max(bytes, slot_rows * layer.hidden * 4 + max_tokens * k * 16 + max_tokens * 8 +
                                max_tokens * int64_t{model.max_experts()} * 16 +
                                (resident_forward ? 2 * max_tokens * layer.hidden * 4 : 0));
  }
  return bytes;
}

LayerRunner::LayerRunner(const LayerParts& parts, int64_t max_tokens)
    : parts_(parts), all_tokens_(max_tokens), shared_rows_(max_tokens) {
  std::iota(all_tokens_.begin(), all_tokens_.end(), 0);
  int64_t slot_floats = 0;
  for (const MoeLayerSpec& layer : parts.model->layers) {
    slot_floats = std::max(slot_floats, max_tokens * (layer.routing.top_k + 1) * layer.hidden);
  }
  if (parts.simulate || parts.device != nullptr) return;
  slots_ = AlignedArray<float>(slot_floats);
  if (parts.strategy->prefetch == nullptr || !parts.strategy->prefetch->traits().resident_forward) {
    return;
  }
  int64_t hidden = 0;
  for (const MoeLayerSpec& layer : parts.model->layers) hidden = std::max(hidden, layer.hidden);
  partial_ = AlignedArray<float>(max_tokens * hidden);
  next_input_ = AlignedArray<float>(max_tokens * hidden);
}

}  // namespace moert
