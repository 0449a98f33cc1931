// The path of a token batch through one MoE layer.
#include "engine/layer.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "plan/layer_planner.h"

namespace moert {
namespace {

GivenRouting OnDevice(const RoutedInput& given) {
  return {given.ids.data(), given.weights.data(),
          given.used_ids.empty() ? nullptr : given.used_ids.data(),
          static_cast<int64_t>(given.ids.size())};
}

}  // namespace

LayerRunner::LayerRunner(const LayerParts& parts)
    : parts_(parts),
      device_(parts.executor->device_path()),
      device_cache_(device_->cache()),
      cpu_(parts.executor->cpu_offload()),
      forwarder_(parts.executor->resident_forward()),
      runs_resident_(device_->present() && parts.trace == nullptr &&
                     parts.strategy->routing == nullptr && parts.strategy->prefetch == nullptr &&
                     !parts.clock->is_virtual()) {}

absl::Status LayerRunner::CheckRules() const {
  if (!device_->present()) {
    return absl::FailedPreconditionError("this backend computes on the host");
  }
  if (parts_.trace != nullptr || parts_.clock->is_virtual() || !parts_.strategy->misses_by_rule()) {
    return absl::FailedPreconditionError(
        "a policy, a trace or the virtual clock has to see every routing before it is executed");
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::ServeMisses() {
  MOERT_RETURN_IF_ERROR(CheckRules());
  const absl::Status status = device_cache_->ServeMisses(*parts_.store);
  serves_misses_ = status.ok();
  return status;
}

absl::Status LayerRunner::TakeBack() { return device_cache_->TakeBack(parts_.store); }

absl::Status LayerRunner::Forward(LayerCall call) {
  // Unpins the call's experts on every return.
  const absl::Cleanup unpin = [&] {
    for (const int32_t e : batch_) parts_.store->Unpin({call.context.layer, e});
    batch_.clear();
  };
  parts_.charges->Begin(call.routed);
  call.context.now_ns = parts_.clock->now_ns();
  times_ = {call.step_begin_ns, call.context.now_ns};
  const int64_t stalled_ns = stats_.stalled_ns();
  parts_.store->BeginLayerCall();
  parts_.store->Pump();
  if (!call.exec.capturing) CollectRoutings();
  if (CanRunResident(call)) {
    if (call.routed == nullptr) {
      const RoutingRule rule = parts_.strategy->routing == nullptr
                                   ? RoutingRule{}
                                   : parts_.strategy->routing->Rule(call.context);
      return device_->RunResident(call.exec, call.context, rule, *parts_.store);
    }
    if (parts_.strategy->routing != nullptr) {
      return absl::FailedPreconditionError(
          "the stream is being captured: a strategy that substitutes experts needs scores, which a "
          "routing in device memory does not have");
    }
    return device_->RunGiven(call.exec, OnDevice(*call.routed), call.context, *parts_.store);
  }

  MOERT_RETURN_IF_ERROR(Route(call));
  Plan(call);
  batch_.swap(plan_.ready);  // these experts are pinned; from here on batch_ unpins them
  times_.route_ns = parts_.clock->now_ns() - times_.begin_ns;
  Span(call, TimelineTrack::kLayers, "route", times_.begin_ns);
  const int64_t cpu_done_ns = parts_.clock->now_ns() + plan_.cpu_ns;
  absl::Status status;
  try {
    status = BringExperts(call);
  } catch (...) {  // out of memory, or thrown by a host's policy
    status = ExceptionStatus("layer call");
  }
  // After a failure too, because the CPU uses the same buffers as the next call.
  if (!plan_.cpu.empty()) status.Update(JoinCpu(call, cpu_done_ns));
  MOERT_RETURN_IF_ERROR(status);
  const int64_t combine_ns = parts_.clock->now_ns();
  MOERT_RETURN_IF_ERROR(parts_.executor->Combine(call.exec, routing_));

  if (parts_.versions == nullptr) EndCacheUse(call);
  parts_.charges->Rest(call.context.phase, call.exec.tokens);
  Span(call, TimelineTrack::kLayers, "combine", combine_ns);
  EndCall(call, stalled_ns);
  return absl::OkStatus();
}

bool LayerRunner::CanRunResident(const LayerCall& call) const {
  if (call.routed != nullptr && call.routed->place == Place::kHost) return false;
  if (serves_misses_ && call.exec.capturing) return true;
  return runs_resident_ && NothingMissing(call.context.layer);
}

bool LayerRunner::NothingMissing(int layer) const {
  const LayerResidency residency = parts_.store->Layer(layer);
  return std::all_of(residency.usable.begin(), residency.usable.end(),
                     [](uint8_t usable) { return usable != 0; });
}

void LayerRunner::EndCacheUse(const LayerCall& call) {
  // A low record that this call loaded must not answer later calls, which its bound does not cover.
  for (const int32_t e : plan_.load) {
    if (plan_.load_low[e] != 0) parts_.store->DropLow({call.context.layer, e});
  }
  parts_.store->EndLayerCall(call.context);
  Upgrade(call);
  parts_.scheduler->Backfill(call.context, plan_);
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

void LayerRunner::EndCall(const LayerCall& call, int64_t stalled_ns) {
  times_.end_ns = parts_.clock->now_ns();
  times_.stalled_ns = stats_.stalled_ns() - stalled_ns;
  parts_.prefetcher->EndCall(call.context, call.exec.tokens, times_.end_ns);
  if (parts_.trace == nullptr) return;
  // A trace can only hold the layer's own number of experts per token.
  if (routing_.top_k != parts_.model->layers[call.context.layer].routing.top_k) return;
  parts_.trace->OnCall({call.context.step, call.context.phase, call.context.layer, call.exec.tokens,
                        call.context.request_ids, routing_.ids, routing_.weights, routing_.scores,
                        forward_predicted_ ? gate_scores_ : routing_.next_scores, times_});
}

void LayerRunner::Span(const LayerCall& call, TimelineTrack track, absl::string_view name,
                       int64_t begin_ns) {
  if (parts_.trace == nullptr) return;
  parts_.trace->OnSpan(
      {track, name, begin_ns, parts_.clock->now_ns(), call.context.step, call.context.layer});
}

absl::Status LayerRunner::Route(const LayerCall& call) {
  const PolicyContext& context = call.context;
  RoutingRequest request;
  if (parts_.strategy->routing != nullptr) request.rule = parts_.strategy->routing->Rule(context);
  request.residency = parts_.store->Layer(context.layer);
  request.store = parts_.store;
  request.request_ids = context.request_ids;
  request.next_gate = WantsNextGate(call);
  MOERT_RETURN_IF_ERROR(call.routed != nullptr
                            ? SetGivenRouting(call, request)
                            : parts_.executor->Route(call.exec, request, &routing_));
  parts_.charges->Routed(context.layer, routing_,
                         parts_.prefetcher->wants_next_gate(context.phase));
  parts_.router->Count(routing_);
  return absl::OkStatus();
}

bool LayerRunner::WantsNextGate(const LayerCall& call) const {
  return (parts_.prefetcher->wants_next_gate(call.context.phase) && !WantsForward(call)) ||
         (parts_.trace != nullptr && parts_.trace->wants_next_scores());
}

absl::Status LayerRunner::SetGivenRouting(const LayerCall& call, const RoutingRequest& request) {
  RoutedInput given = *call.routed;
  MOERT_RETURN_IF_ERROR(BringGivenRouting(call, &given));
  MOERT_RETURN_IF_ERROR(parts_.router->RouteGiven(
      call.context.layer, call.exec.tokens, given.ids, given.weights, given.scores,
      given.next_scores, request.rule, request.residency, request.request_ids, &routing_));
  MOERT_RETURN_IF_ERROR(parts_.executor->SetRouting(call.exec, routing_));
  if (given.used_ids.empty()) return absl::OkStatus();
  if (given.used_ids.size() != routing_.ids.size()) {
    return absl::InvalidArgumentError("used_ids: must have the size of ids");
  }
  if (given.place == Place::kDevice) {
    return device_->ReturnUsed(call.exec, routing_.ids, given.used_ids.data());
  }
  std::copy(routing_.ids.begin(), routing_.ids.end(), given.used_ids.begin());
  return absl::OkStatus();
}

absl::Status LayerRunner::BringGivenRouting(const LayerCall& call, RoutedInput* given) {
  if (given->place == Place::kHost) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(
      device_->BringGiven(call.exec, OnDevice(*given), &given_ids_, &given_weights_));
  given->ids = given_ids_;
  given->weights = given_weights_;
  return absl::OkStatus();
}

void LayerRunner::Plan(const LayerCall& call) {
  const PolicyContext& context = call.context;
  // Cancels prefetches for this layer that have not started, before the misses are known, so that a
  // demand load never waits behind a wrong guess.
  PolicyContext known = context;
  known.now_ns = parts_.clock->now_ns();
  parts_.prefetcher->Resolve(known, routing_);
  parts_.residency->Observe(LayerEvent::Routed(context, routing_.view()));
  if (parts_.versions != nullptr) parts_.versions->OnRouting(context, routing_.view());
  parts_.scheduler->Plan(context, call.exec.epoch, routing_, &plan_);
}

absl::Status LayerRunner::BringExperts(const LayerCall& call) {
  flying_.clear();
  again_.clear();
  forward_predicted_ = false;
  gate_scores_.clear();
  bool forward = WantsForward(call);  // still to be done, after the first batch
  bool predicted = false;
  size_t next = 0;  // index into plan_.load
  absl::Status failure;
  if (!plan_.cpu.empty()) failure = cpu_->BeginCpu(call.exec, routing_, plan_.cpu);
  for (bool first = true;; first = false) {
    if (failure.ok() && call.cancelled->load(std::memory_order_relaxed)) {
      failure = absl::CancelledError("the step was cancelled");
    }
    // Further loads start when this batch frees some blocks.
    if (failure.ok()) StartLoads(call, &next);
    const bool all_queued = next == plan_.load.size();
    if (all_queued && !predicted && !forward) {
      Predict(call, /*given=*/call.fetch || call.routed != nullptr);
      predicted = true;
    }
    if (!call.fetch && (first || !batch_.empty())) {
      const std::vector<int32_t> computed = forward ? batch_ : std::vector<int32_t>{};
      absl::Status status = Multiply(call, first);
      if (status.ok() && forward) status = PredictForward(call, computed);
      forward = false;
      failure.Update(status);
      continue;
    }
    if (flying_.empty() && (all_queued || !failure.ok())) return failure;
    const int64_t begin_ns = parts_.clock->now_ns();
    if (!parts_.store->Wait()) return NoBlockLeft(call, plan_.load.size() - next);
    failure.Update(CollectArrived(call));
    CountStall(call, begin_ns);
  }
}

absl::Status LayerRunner::NoBlockLeft(const LayerCall& call, size_t waiting) const {
  if (call.fetch) {
    const auto most = static_cast<int64_t>(batch_.size());
    return TooMany(call.context.layer, most + static_cast<int64_t>(waiting), most);
  }
  const absl::string_view by = parts_.store->pool(0).refused_by();
  return ResourceExhausted(
      "layer {}: no block of the budget is free for a missing expert: {}", call.context.layer,
      by.empty()
          ? "leases or fetches hold them; release some, or raise the budget"
          : fmt::format("{}, though the budget has room", fmt::string_view(by.data(), by.size())));
}

void LayerRunner::StartLoads(const LayerCall& call, size_t* next) {
  const PolicyContext& context = call.context;
  for (; *next < plan_.load.size(); ++*next) {
    constexpr size_t kStreamWidth = 2;  // keeps the link busy while one is multiplied
    const int32_t expert = plan_.load[*next];
    // All experts of a fetch stay pinned: none gives its block back for the next load.
    const LoadHint hint{routing_.counts[expert],
                        !call.fetch && (!batch_.empty() || !flying_.empty()),
                        !call.fetch && flying_.size() >= kStreamWidth};
    const ExpertKey key{context.layer, expert};
    const int version =
        plan_.load_low[expert] != 0
            ? 1
            : TransferVersion(Precision(), context, key, routing_.counts, /*prefetch=*/false,
                              parts_.store->num_versions(), &stats_.policy_fallbacks);
    if (!parts_.store->StartLoad(key, version, LoadReason::kDemand, context, hint)) return;
    // A late prefetch may have arrived since the plan was made. Claims it at once, because an
    // unpinned expert could be evicted for the next load.
    if (!Claim(call, expert)) flying_.push_back(expert);
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
    if (status.ok() && LoadAgain(*it)) continue;
    if (status.ok()) {
      status = Internal("expert {} of layer {} arrived and is gone", *it, call.context.layer);
    }
    failure.Update(status);
  }
  flying_.erase(arrived, flying_.end());
  return failure;
}

bool LayerRunner::LoadAgain(int32_t expert) {
  if (std::find(again_.begin(), again_.end(), expert) != again_.end()) return false;
  again_.push_back(expert);
  plan_.load.push_back(expert);
  return true;
}

bool LayerRunner::Claim(const LayerCall& call, int32_t expert) {
  const ExpertKey key{call.context.layer, expert};
  if (parts_.store->Resolve(key, call.exec.epoch).record == nullptr) return false;
  parts_.store->Touch(key, routing_.counts[expert]);
  batch_.push_back(expert);
  parts_.store->Pin(key);
  return true;
}

absl::Status LayerRunner::Multiply(const LayerCall& call, bool first) {
  const int layer = call.context.layer;
  ready_.clear();
  for (const int32_t e : batch_) {
    ready_.push_back({e, parts_.store->Resolve({layer, e}, call.exec.epoch)});
  }
  if (first) {
    for (const int32_t e : plan_.low) ready_.push_back({e, parts_.store->Standby({layer, e})});
  }
  const int64_t begin_ns = parts_.clock->now_ns();
  const absl::Status status = parts_.executor->Multiply(call.exec, routing_, ready_, first);
  parts_.charges->Multiplied(layer, routing_, ready_, first);
  times_.multiply_ns += parts_.clock->now_ns() - begin_ns;
  const bool shared = first && parts_.model->layers[layer].shared_intermediate > 0;
  if (shared || !batch_.empty()) Span(call, TimelineTrack::kLayers, "multiply", begin_ns);
  for (const int32_t e : batch_) parts_.store->Unpin({layer, e});
  batch_.clear();
  return status;
}

absl::Status LayerRunner::JoinCpu(const LayerCall& call, int64_t done_ns) {
  const int64_t begin_ns = parts_.clock->now_ns();
  int64_t took_ns = 0;
  const absl::Status status = cpu_->JoinCpu(call.exec, &took_ns);
  if (status.ok()) parts_.scheduler->ObserveCpuTime(plan_, took_ns);
  parts_.charges->WaitUntil(done_ns);
  const int64_t waited_ns = parts_.clock->now_ns() - begin_ns;
  if (waited_ns == 0) return status;
  stats_.stall_cpu_ns += waited_ns;
  parts_.prefetcher->WaitedForCpu(waited_ns);
  Span(call, TimelineTrack::kStalls, "wait for the CPU", begin_ns);
  return status;
}

void LayerRunner::CountStall(const LayerCall& call, int64_t begin_ns) {
  // The longest transfer of the batch counts as the miss itself, the rest of the wait as queueing.
  const int64_t waited = parts_.clock->now_ns() - begin_ns;
  int64_t moved = 0;
  for (const int32_t e : batch_) {
    moved = std::max(moved, parts_.store->moved_ns({call.context.layer, e}));
  }
  stats_.stall_miss_ns += std::min(waited, moved);
  stats_.stall_queue_ns += waited - std::min(waited, moved);
  parts_.prefetcher->WaitedForLoads(begin_ns, begin_ns + waited);
  Span(call, TimelineTrack::kStalls, "wait for experts", begin_ns);
}

}  // namespace moert
