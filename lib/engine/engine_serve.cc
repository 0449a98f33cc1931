// Open calls: the host's thread enqueues a layer call whole and goes on; a thread of the engine
// learns the routing when the device has it, runs the policies, brings what is missing and lets the
// device go on (DeviceExecutor in backend/backend.h).
#include <algorithm>
#include <exception>
#include <system_error>

#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "fmt/format.h"

namespace moert {

EngineImpl::Hold::Hold(EngineImpl* engine) : engine_(engine), call_(engine->call_mu_) {
  if (engine->open_calls_) status_ = engine->device_->DrainOpen();
  state_ = std::unique_lock<std::mutex>(engine->mu_);
  if (engine->open_calls_ && status_.ok()) engine->runner_->FinishOpen();
}

EngineImpl::Hold::~Hold() {
  if (!engine_->open_calls_ || !status_.ok()) return;
  if (engine_->unsettled_) engine_->unsettled_ = !engine_->store_->pool(0).HoldAll();
  const absl::Status synced = engine_->device_->SyncTable(engine_->store_.get());
  for (auto& [id, step] : engine_->steps_) step.status.Update(synced);
}

EngineImpl::~EngineImpl() {
  if (!service_.joinable()) return;
  closing_ = true;  // calls that still wait are let go as they are
  device_->StopOpen();
  service_.join();
}

void EngineImpl::StartService() {
  if (device_ == nullptr || !device_->wants_open() || options_.clock != ClockKind::kWall ||
      options_.trace != nullptr || strategy_.serving != Serving::kCache || strategy_.preload) {
    return;
  }
  absl::Status status = device_->StartOpen();
  if (status.ok()) {
    store_->TrackChanges();
    open_calls_ = true;
    unsettled_ = !store_->pool(0).HoldAll();
    try {
      service_ = std::thread([this] { Serve(); });
    } catch (const std::system_error& e) {
      open_calls_ = false;
      status = absl::ResourceExhaustedError(e.what());
    }
  }
  if (!status.ok()) {
    Log(LogLevel::kWarning,
        fmt::format("misses are served by the caller's thread: {}", status.ToString()));
  }
}

absl::StatusOr<bool> EngineImpl::TryOpen(StepId step_id, int layer, const MatrixView& hidden,
                                         const MutableMatrixView& out) {
  const auto it = steps_.find(step_id);
  if (it == steps_.end()) return false;  // the long way says what is wrong
  const Step& step = it->second;
  if (!CheckViews(step, layer, hidden, out).ok() || leases_->any() ||
      step.cancelled->load(std::memory_order_relaxed)) {
    return false;
  }
  const MoeLayerSpec& spec = source_->model().layers[layer];
  // All experts of the call are held at once.
  const int64_t most = std::min<int64_t>(spec.num_experts, step.rows * spec.routing.top_k);
  if (step.rows > device_->MaxOpenTokens() || most > plan_.slots) return false;
  const bool capturing = device_->Capturing(step.stream);
  // A graph may be replayed when that is no longer so.
  if ((everything_held_ || unsettled_) && !capturing) return false;
  RoutingOverride ruled;
  const bool own_choice = step.rules.empty() || step.rules[layer].kind == RoutingRuleKind::kTopK;
  if (!own_choice) {
    ruled = {step.rules[layer], step.request_ids, nullptr};
    if (capturing || !device_->Executes(layer, ruled.rule)) return false;
  }
  DeviceCall call{layer, step.epoch, hidden, out, step.stream, strategy_.placement != nullptr};
  call.open = true;
  MOERT_RETURN_IF_ERROR(device_->EnqueueOpen(call, {step_id, runner_->WantsNextGate(step.phase)},
                                             own_choice ? nullptr : &ruled));
  return true;
}

void EngineImpl::Serve() {
  OpenCall open;
  RoutingResult routing;
  while (device_->NextOpen(&open, &routing)) {
    const std::lock_guard<std::mutex> lock(mu_);
    ServeOne(open, &routing);
    device_->ReleaseOpen(open, store_.get());
    Publish();
  }
}

void EngineImpl::ServeOne(const OpenCall& open, RoutingResult* routing) {
  // A replay belongs to the step that began last.
  const auto it = open.captured ? (steps_.empty() ? steps_.end() : std::prev(steps_.end()))
                                : steps_.find(open.context.step_id);
  if (it == steps_.end() || closing_) return;
  Step& step = it->second;
  stats_.graph_captured |= open.captured;
  LayerCall call{ContextOf(step, open.call.layer), step.epoch};
  call.tokens = open.call.hidden.rows;
  call.step_begin_ns = step.begin_ns;
  call.cancelled = step.cancelled.get();
  call.device = open.call;
  absl::Status status;
  try {
    status = runner_->Serve(call, open.ruled, routing);
    ApplyHints();                      // now that what the call uses is pinned
  } catch (const std::exception& e) {  // of a host's policy, or no memory
    status = absl::InternalError(fmt::format("serving layer {}: {}", open.call.layer, e.what()));
  }
  if (!status.ok() && step.status.ok()) step.status = status;
  // Then calls need nobody to serve them; policies that want to see routings do.
  everything_held_ = strategy_.prefetch == nullptr && strategy_.routing == nullptr &&
                     plan_.slots >= plan_.total_experts && AllUsable();
}

bool EngineImpl::AllUsable() const {
  for (int l = 0; l < source_->model().num_layers(); ++l) {
    const LayerResidency layer = store_->Layer(l);
    if (std::find(layer.usable.begin(), layer.usable.end(), 0) != layer.usable.end()) return false;
  }
  return true;
}

}  // namespace moert
