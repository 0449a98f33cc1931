// Engine::Fetch: layer calls of hosts that multiply with their own kernels.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "engine/engine_impl.h"
#include "fmt/format.h"
#include "model/check_layer.h"
#include "moert/source/opaque_source.h"

namespace moert {
namespace {

/// base + offset, computed as integers because `base` may be null.
const std::byte* At(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(base) +
                                            static_cast<uintptr_t>(offset));
}

/// Checks the fields that a host has to provide for a product on the CPU.
absl::Status CheckGivenProduct(const MoeLayerSpec& layer, const OpaqueProduct& given) {
  if (given.x == nullptr || given.out == nullptr || given.hidden != layer.hidden) {
    return InvalidArgument("rows of a product on the CPU: takes x and out with {} columns",
                           layer.hidden);
  }
  int64_t pairs = 0;
  for (const OpaqueProduct::Expert& expert : given.experts) {
    if (expert.expert < 0 || expert.expert >= layer.num_experts || expert.pairs < 1) {
      return InvalidArgument("expert {} with {} pairs; legal are experts 0 to {}, with at least 1",
                             expert.expert, expert.pairs, layer.num_experts - 1);
    }
    pairs += expert.pairs;
  }
  const auto known = [&](int32_t row) { return row >= 0 && row < given.rows; };
  if (pairs == std::ssize(given.row_of) &&
      std::all_of(given.row_of.begin(), given.row_of.end(), known)) {
    return absl::OkStatus();
  }
  return InvalidArgument("row_of: takes one of {} rows for each of {} pairs", given.rows, pairs);
}

/// The places of the parts of a layer's records within its slots.
std::vector<SlotView::Part> PartsOf(const SlotRegion& region, const VersionedStore& store,
                                    int layer, int experts) {
  std::vector<SlotView::Part> parts;
  const RecordLayout& layout = store.layout({layer, 0}, 0);
  for (const RecordPart& part : layout.parts) {
    parts.push_back({At(region.base, part.offset), region.stride, part.bytes});
  }
  if (!parts.empty()) return parts;
  bool alike = true;
  for (int e = 1; e < experts; ++e) {
    alike = alike && store.layout({layer, e}, 0).bytes == layout.bytes;
  }
  return {{region.base, region.stride, alike ? layout.bytes : 0}};
}

}  // namespace

absl::Status EngineImpl::CheckSlotView(int layer, const SlotView* view) const {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  if (view == nullptr) return absl::InvalidArgumentError("view: must not be null");
  return blueprint_->backend->CheckLease();
}

absl::Status EngineImpl::Fetch(StepId step, int layer, const FetchInput& input, SlotView* view) {
  MOERT_RETURN_IF_ERROR(CheckSlotView(layer, view));
  absl::Status status;
  bool lacks_scores = false;
  {
    const TurnLock lock(&turns_, &mu_);
    try {
      status = FetchLocked(step, layer, input, view);
    } catch (...) {  // out of memory, or thrown by a host's policy
      status = ExceptionStatus("fetch");
    }
    lacks_scores = LacksScores();
  }
  try {
    if (lacks_scores) LogLackingScores();
  } catch (...) {  // no memory for the log line
  }
  return status;
}

absl::Status EngineImpl::CheckFetched(int layer, const StepState& step, const FetchInput& input,
                                      bool capturing) const {
  const bool there = input.place == Place::kDevice;
  if (there) {
    const size_t weights = input.weights.empty() ? input.ids.size() : input.weights.size();
    MOERT_RETURN_IF_ERROR(CheckOnDevice(
        layer, step.rows,
        {input.ids.size(), weights, input.slot_ids.size(), "slot_ids", !input.scores.empty()}));
  }
  const bool safe = blueprint_->strategy.graph_safe() || parts_->runner->serves_fetches();
  if ((!there || !safe) && capturing) {
    return FailedPrecondition(
        "the stream is being captured: {}",
        there ? fmt::format("strategy {} needs the host in every layer call", strategy())
              : "ids in host memory are read once, not at replay");
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::CheckReleased(int layer, bool served) const {
  if (!parts_->runner->lent()) return absl::OkStatus();
  for (const auto& [id, step] : steps_) {
    for (const Fetched& fetched : step.fetched) {
      if (served && fetched.layer != layer) continue;
      return FailedPrecondition(
          "layer {}: a fetch that the device served is not released yet, and this call could give "
          "its slots to others: release it first",
          fetched.layer);
    }
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::TakeBack() {
  MOERT_RETURN_IF_ERROR(CheckReleased(/*layer=*/0, /*served=*/false));
  return parts_->runner->TakeBack();
}

absl::Status EngineImpl::CopyLayer(StepId step_id, int layer, absl::Span<const int32_t> experts,
                                   std::byte* to, SlotView* view) {
  MOERT_RETURN_IF_ERROR(CheckSlotView(layer, view));
  for (const int32_t e : experts) {
    const int all = source_->model().layers[layer].num_experts;
    if (e >= 0 && e < all) continue;
    return InvalidArgument("experts of layer {}: {} does not exist, legal is 0 to {}", layer, e,
                           all - 1);
  }
  const TurnLock lock(&turns_, &mu_);
  try {
    return CopyLayerLocked(step_id, layer, experts, to, view);
  } catch (...) {  // out of memory
    return ExceptionStatus("copy of a layer");
  }
}

absl::Status EngineImpl::CopyLayerLocked(StepId step_id, int layer,
                                         absl::Span<const int32_t> experts, std::byte* to,
                                         SlotView* view) {
  MOERT_ASSIGN_OR_RETURN(const StepState* const step, FindStep(step_id));
  MOERT_ASSIGN_OR_RETURN(SlotRegion region, parts_->store->Slots(layer));
  if (serves_versions()) {
    return absl::UnimplementedError(
        "copies of whole layers: of strategies that serve one version of an expert");
  }
  const int all = source_->model().layers[layer].num_experts;
  region.base = to;
  view->parts = PartsOf(region, *parts_->store, layer, all);
  view->slots = all;
  view->slot_of_expert = {};
  view->device_slot_of_expert = nullptr;
  if (to == nullptr) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(TakeBack());
  std::vector<int32_t> every;
  if (experts.empty()) {
    every.resize(all);
    std::iota(every.begin(), every.end(), 0);
    experts = every;
  }
  return parts_->executor->CopyRecords({layer, step->epoch, step->rows, {}, {}, step->stream, {}},
                                       *parts_->store, experts, to, region.stride);
}

absl::Status EngineImpl::MultiplyOnCpu(StepId step_id, int layer, const OpaqueProduct& given) {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  MOERT_RETURN_IF_ERROR(CheckGivenProduct(source_->model().layers[layer], given));
  OpaqueProduct product = given;
  product.layer = layer;
  const TurnLock lock(&turns_, &mu_);
  try {
    MOERT_ASSIGN_OR_RETURN(const StepState* const step, FindStep(step_id));
    MOERT_RETURN_IF_ERROR(TakeBack());
    const std::vector<float> ones(product.row_of.size(), 1.0f);
    if (product.weights.empty()) product.weights = ones;
    return parts_->executor->MultiplyOnCpu(*parts_->store, step->epoch, product);
  } catch (...) {  // out of memory, or thrown by the host's product or thread pool
    return ExceptionStatus("the product on the CPU");
  }
}

absl::Status EngineImpl::TakeCpuFailure(StepState* step) {
  absl::Status failure = parts_->executor->device_path()->cache()->TakeCpuFailure();
  step->status.Update(failure);
  return failure;
}

absl::Status EngineImpl::TakeCpuRows(StepId step_id, int layer, const MutableMatrixView& rows) {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  const TurnLock lock(&turns_, &mu_);
  MOERT_ASSIGN_OR_RETURN(StepState* const step, FindStep(step_id));
  const MoeLayerSpec& spec = source_->model().layers[layer];
  const int64_t pairs = step->rows * spec.routing.top_k;
  if (rows.data == nullptr || rows.dtype != DType::kF32 || rows.rows != pairs ||
      rows.cols != spec.hidden || rows.row_stride < rows.cols) {
    return InvalidArgument(
        "rows of layer {}: {} [{}, {}] with a stride of {}; takes f32 [{}, {}] with a stride of at "
        "least {}",
        layer, DTypeName(rows.dtype), rows.rows, rows.cols, rows.row_stride, pairs, spec.hidden,
        spec.hidden);
  }
  absl::Status status = parts_->executor->device_path()->cache()->TakeCpuRows(
      {layer, step->epoch, step->rows, {}, {}, step->stream, {}}, rows);
  step->status.Update(status);
  status.Update(TakeCpuFailure(step));
  return status;
}

absl::Status EngineImpl::FetchLocked(StepId step_id, int layer, const FetchInput& input,
                                     SlotView* view) {
  MOERT_ASSIGN_OR_RETURN(StepState* const step, FindStep(step_id));
  if (serves_versions()) {
    return FailedPrecondition(
        "strategy {} serves several versions of an expert: Fetch needs one that serves one",
        strategy());
  }
  MOERT_RETURN_IF_ERROR(CheckReleased(layer, parts_->runner->Serves(layer, input)));
  MOERT_ASSIGN_OR_RETURN(const SlotRegion region, parts_->store->Slots(layer));
  MOERT_ASSIGN_OR_RETURN(const bool capturing, Capturing(*step));
  MOERT_RETURN_IF_ERROR(CheckFetched(layer, *step, input, capturing));
  const LayerCall call{
      ContextOf(*step, layer),
      {layer, step->epoch, step->rows, input.hidden, {}, step->stream, {}, capturing},
      nullptr,
      step->begin_ns,
      step->cancelled.get(),
      nullptr};
  if (input.hidden.data != nullptr) {
    MOERT_RETURN_IF_ERROR(
        Executor::CheckRows("hidden", input.hidden, call.exec, source_->model().layers[layer]));
  }
  if (input.cpu_rows.data != nullptr) {
    MOERT_RETURN_IF_ERROR(
        Executor::CheckRows("cpu_rows", input.cpu_rows, call.exec, source_->model().layers[layer]));
  }
  MOERT_RETURN_IF_ERROR(TakeCpuFailure(step));
  Fetched fetched{layer, Pins(parts_->store.get()), {}};
  ApplyHints();
  const absl::Status status =
      parts_->runner->Fetch(call, input, &fetched.pins, &view->device_slot_of_expert);
  Publish();
  // An error that the host can correct by another request does not fail the step.
  if (!absl::IsInvalidArgument(status) && !absl::IsResourceExhausted(status)) {
    step->status.Update(status);
  }
  MOERT_RETURN_IF_ERROR(status);
  const int experts = source_->model().layers[layer].num_experts;
  fetched.slot_of_expert.assign(experts, -1);
  for (const ExpertKey key : fetched.pins.keys()) {
    fetched.slot_of_expert[key.expert] =
        region.SlotOf(parts_->store->Resolve(key, step->epoch).record);
  }
  const bool on_host = input.place == Place::kHost;
  for (size_t i = 0; on_host && i < input.slot_ids.size(); ++i) {
    const int32_t e = input.ids[i];
    input.slot_ids[i] = e < 0 ? -1 : fetched.slot_of_expert[e];
  }
  view->parts = PartsOf(region, *parts_->store, layer, experts);
  view->slots = region.slots;
  step->fetched.push_back(std::move(fetched));
  view->slot_of_expert = step->fetched.back().slot_of_expert;
  return absl::OkStatus();
}

absl::Status EngineImpl::ReleaseFetched(StepId step, int layer) {
  MOERT_RETURN_IF_ERROR(CheckProcess());
  MOERT_RETURN_IF_ERROR(CheckLayer(source_->model(), layer));
  const TurnLock lock(&turns_, &mu_);
  MOERT_ASSIGN_OR_RETURN(StepState* const found, FindStep(step));
  const auto of_layer = [layer](const Fetched& f) { return f.layer == layer; };
  if (std::none_of(found->fetched.begin(), found->fetched.end(), of_layer)) return absl::OkStatus();
  DevicePath* const device = parts_->executor->device_path();
  if (device->cache()->owes_cpu_rows(layer)) {
    return FailedPrecondition(
        "layer {}: rows that the CPU computes are not taken yet: TakeCpuRows first", layer);
  }
  MOERT_RETURN_IF_ERROR(device->LeaveSlots(found->stream));
  std::erase_if(found->fetched, of_layer);
  if (!parts_->runner->lent()) parts_->store->EndLayerCall(ContextOf(*found, layer));
  return TakeCpuFailure(found);
}

}  // namespace moert
