// CudaExecutor: routing, on the device or on the host.
#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"
#include "route/grouping.h"
#include "route/route_token.h"

namespace moert::cuda {

absl::Status CudaExecutor::RouteOnDevice(const ExecutorCall& call) {
  const cudaStream_t stream = Stream(call);
  const auto tokens = static_cast<int>(call.hidden.rows);
  const LayerOnDevice& layer = on_device_.layer(call.layer);
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGateLogits(Rows(call), layer.gate, layer.routing.num_experts, w_.scores, stream));
  return MOERT_CUDA_STATUS(
      LaunchTopK(layer.routing, tokens, w_.scores, w_.ids, w_.weights, stream));
}

ExpertCacheArgs CudaExecutor::RuleOf(const ExecutorCall& call, const RoutingRule& rule) const {
  return DeviceRule::OfCapture(w_, on_device_.layer(call.layer).routing, call.hidden.rows, rule,
                               served_->Residents(call.layer));
}

absl::Status CudaExecutor::ApplyRule(const ExecutorCall& call, const RoutingRule& rule) {
  return MOERT_CUDA_STATUS(LaunchExpertCache(RuleOf(call, rule), Stream(call)));
}

absl::Status CudaExecutor::BringTokenIds(const ExecutorCall& call) {
  if (Spec(call).routing.hash_vocab == 0) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(
      CheckTokenIds(call.layer, Spec(call).routing, call.hidden.rows, call.token_ids));
  return call.capturing ? absl::OkStatus() : UploadTokenIds(call.token_ids, Stream(call));
}

absl::Status CudaExecutor::UploadTokenIds(absl::Span<const int32_t> ids, cudaStream_t stream) {
  if (ids == token_ids_) return absl::OkStatus();
  token_ids_.clear();  // after a failure the contents are unknown
  // The source is pageable: it has been read when the call returns.
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(w_.token_ids, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice, stream));
  token_ids_.assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status CudaExecutor::RouteNext(const ExecutorCall& call) {
  const cudaStream_t stream = Stream(call);
  const LayerOnDevice& next = on_device_.layer((call.layer + 1) % model_.num_layers());
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGateLogits(Rows(call), next.gate, next.routing.num_experts, w_.next_scores, stream));
  return MOERT_CUDA_STATUS(LaunchTopK(next.routing, static_cast<int>(call.hidden.rows),
                                      w_.next_scores, nullptr, nullptr, stream));
}

absl::Status CudaExecutor::PrepareFew(const ExecutorCall& call, const GivenRouting* given,
                                      bool tallied, RouteFewArgs* route) {
  const cudaStream_t stream = Stream(call);
  const LayerOnDevice& layer = on_device_.layer(call.layer);
  const int64_t x_stride = extent_.x_stride();
  const bool weighted = WeightsInput(call);  // the rows depend on the chosen experts
  int packed = 0;                            // operands of x that have been packed
  if (given == nullptr) {
    GateOf second;
    if (tallied && PredictsNext(call, false)) {  // of a captured call
      const LayerOnDevice& next = on_device_.layer(call.layer + 1);
      second = {next.gate, next.routing.num_experts, w_.next_scores};
    }
    MOERT_CUDA_RETURN_IF_ERROR(LaunchGateLogits(Rows(call), layer.gate, layer.routing.num_experts,
                                                w_.scores, stream, weighted ? nullptr : w_.x[0],
                                                x_stride, second));
    packed = 1;
  }
  if (!weighted) MOERT_RETURN_IF_ERROR(PackOperands(call, packed));
  RouteFewArgs& args = *route;
  args.routing = layer.routing;
  args.tokens = static_cast<int32_t>(call.hidden.rows);
  args.scores = w_.scores;
  args.ids = w_.ids;
  args.weights = w_.weights;
  if (given != nullptr) {
    args.given_ids = given->ids;
    args.given_weights = given->weights;
    args.used_ids = given->used_ids;
  }
  args.groups = w_.groups;
  if (tallied) args.tally = Tally(call);
  if (HasShared(call)) args.shared_slots = w_.shared_slots;
  return absl::OkStatus();
}

absl::Status CudaExecutor::RouteFew(const ExecutorCall& call, const GivenRouting* given,
                                    const RoutingRule* rule, bool tallied, bool tiles) {
  const cudaStream_t stream = Stream(call);
  RouteFewArgs args;
  MOERT_RETURN_IF_ERROR(PrepareFew(call, given, tallied, &args));
  if (rule != nullptr) {
    MOERT_CUDA_RETURN_IF_ERROR(
        LaunchTopK(args.routing, args.tokens, w_.scores, w_.ids, w_.weights, stream));
    MOERT_RETURN_IF_ERROR(ApplyRule(call, *rule));
    args.given_ids = w_.ids;
    args.given_weights = w_.weights;
  }
  args.makes_tiles = tiles ? 1 : 0;
  if (tiles) args.tiles = TilesOf(call, AllExperts(call), table_.rows(call.layer));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchRouteFew(args, stream));
  return WeightsInput(call) ? PackOperands(call, 0) : absl::OkStatus();
}

absl::Status CudaExecutor::PackOperands(const ExecutorCall& call, int first) {
  for (int i = first; i < kOperands; ++i) {
    if (w_.x[i] == nullptr || IsPromptOnly(i)) continue;
    MOERT_CUDA_RETURN_IF_ERROR(LaunchPackRows(Rows(call), i, w_.x[i], extent_.x_stride(),
                                              Stream(call), WeightsOfRows(call)));
  }
  return absl::OkStatus();
}

RowWeights CudaExecutor::WeightsOfRows(const ExecutorCall& call) const {
  if (!WeightsInput(call)) return {};
  const int top_k = Spec(call).routing.top_k;
  return {w_.weights, static_cast<int32_t>(call.hidden.rows) * top_k, top_k};
}

absl::Status CudaExecutor::RouteInProducts(const ExecutorCall& call, bool tallied) {
  const cudaStream_t stream = Stream(call);
  const LayerOnDevice& layer = on_device_.layer(call.layer);
  const auto tokens = static_cast<int32_t>(call.hidden.rows);
  GateZeros zeros;
  zeros.ready = w_.table.ready;
  zeros.tiles = FewTiles(tokens, layer.routing.top_k, layer.routing.num_experts, HasShared(call));
  zeros.ticket = w_.table.ticket;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGateLogits(Rows(call), layer.gate, layer.routing.num_experts,
                                              w_.logits, stream, w_.x[0], extent_.x_stride(), {},
                                              zeros));
  MOERT_RETURN_IF_ERROR(PackOperands(call, 1));
  FewProductsArgs args;
  args.routing = layer.routing;
  args.tokens = tokens;
  args.logits = w_.logits;
  args.scores = w_.scores;
  args.ids = w_.ids;
  args.weights = w_.weights;
  if (tallied) args.tally = Tally(call);
  args.formats = on_device_.formats();
  args.num_formats = on_device_.num_formats();
  args.shared = HasShared(call) ? 1 : 0;
  args.handles = table_.rows(call.layer);
  args.gemm = GemmOf(call, /*narrow=*/false, w_.table, shares_);
  return MOERT_CUDA_STATUS(LaunchFewProducts(args, stream));
}

absl::Status CudaExecutor::GroupAndPack(const ExecutorCall& call, bool tallied) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int>(call.hidden.rows);
  const int pairs = tokens * spec.routing.top_k;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGroup(w_.ids, pairs, spec.num_experts, w_.groups, stream,
                                         w_.weights, tallied ? Tally(call) : nullptr));
  if (HasShared(call)) {
    MOERT_CUDA_RETURN_IF_ERROR(LaunchIota(w_.shared_slots, pairs, tokens, stream));
  }
  const PromptPlan prompt = Prompt(call);
  if (prompt.any()) {
    if (prompt.rounded() && !RowsForPrompt(call)) {
      MOERT_CUDA_RETURN_IF_ERROR(LaunchRoundRows(Rows(call), w_.prompt_x, extent_.prompt_x_stride(),
                                                 stream, WeightsOfRows(call)));
    }
    if (prompt.sums()) {
      MOERT_CUDA_RETURN_IF_ERROR(LaunchSumPromptX(
          w_.prompt_x, extent_.prompt_x_stride(), extent_.hidden * 2,
          static_cast<int>(InputRows(call)), static_cast<int>(spec.hidden), stream));
    }
    if (!prompt.others && !prompt.bytes()) return absl::OkStatus();
  }
  const auto reads = [&](int operand) {  // whether some product reads the operand
    if (IsPromptOnly(operand)) return prompt.any();
    return !prompt.any() || prompt.others || IsPromptOperand(operand);
  };
  for (int i = 0; i < kOperands; ++i) {
    if (w_.x[i] == nullptr || !reads(i)) continue;
    MOERT_CUDA_RETURN_IF_ERROR(
        LaunchPackRows(Rows(call), i, w_.x[i], extent_.x_stride(), stream, WeightsOfRows(call)));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::RouteOnHost(const ExecutorCall& call, const RoutingRequest& request,
                                       RoutingResult* routing) {
  const int64_t tokens = call.hidden.rows;
  MOERT_RETURN_IF_ERROR(BringHostRows(call));
  if (cpu_ != nullptr) cpu_->SetRows(host_rows_.data(), tokens, Spec(call).hidden);
  MOERT_RETURN_IF_ERROR(parts_.router->Route(call.layer, host_rows_.data(), tokens, request.rule,
                                             request.residency, request.request_ids,
                                             request.next_gate, routing));
  return UploadRouting(call, *routing);
}

absl::Status CudaExecutor::WaitForRows(cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(rows_arrived_, stream));
  ++host_syncs_;
  return MOERT_CUDA_STATUS(AwaitEvent(rows_arrived_));
}

absl::Status CudaExecutor::UploadRouting(const ExecutorCall& call, const RoutingResult& routing) {
  // The sources are small and pageable: they have been read when the calls return.
  const cudaStream_t stream = Stream(call);
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(w_.ids, routing.ids.data(), routing.ids.size() * 4,
                                             cudaMemcpyHostToDevice, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(w_.weights, routing.weights.data(),
                                             routing.weights.size() * 4, cudaMemcpyHostToDevice,
                                             stream));
  return GroupAndPack(call);
}

absl::Status CudaExecutor::SetRouting(const ExecutorCall& call, const RoutingResult& routing) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  given_ = true;
  if (OffersCpu(call)) {
    MOERT_RETURN_IF_ERROR(cpu_->BringRows(call.hidden, stream));
    MOERT_RETURN_IF_ERROR(WaitForRows(stream));
    cpu_->TakeRows(call.hidden);
  }
  return UploadRouting(call, routing);
}

absl::Status CudaExecutor::Route(const ExecutorCall& call, const RoutingRequest& request,
                                 RoutingResult* routing) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  given_ = false;
  // Rules do not apply to layers that choose experts by token id.
  const bool own_choice =
      request.rule.kind == RoutingRuleKind::kTopK || Spec(call).routing.hash_vocab > 0;
  MOERT_RETURN_IF_ERROR(BringTokenIds(call));
  if (!own_choice) {
    if (!DeviceRule::Executes(Spec(call), request.rule)) return RouteOnHost(call, request, routing);
    // The rule reads residency from the table.
    MOERT_RETURN_IF_ERROR(table_.SyncLayer(*request.store, call.layer, call.epoch, stream));
  }
  if (OffersCpu(call)) MOERT_RETURN_IF_ERROR(cpu_->BringRows(call.hidden, stream));
  MOERT_RETURN_IF_ERROR(RouteOnDevice(call));
  if (!own_choice) {
    MOERT_RETURN_IF_ERROR(rule_.Run(w_, on_device_.layer(call.layer).routing, call.hidden.rows,
                                    request.rule, request.request_ids, table_.rows(call.layer),
                                    returned_.RuleOf(/*late=*/false), stream));
  }
  if (request.next_gate) MOERT_RETURN_IF_ERROR(RouteNext(call));
  MOERT_RETURN_IF_ERROR(
      returned_.Bring(w_, call.layer, call.hidden.rows, request.next_gate, !own_choice, stream));
  MOERT_RETURN_IF_ERROR(GroupAndPack(call));  // runs while the host waits
  ++host_syncs_;
  MOERT_RETURN_IF_ERROR(returned_.Wait(routing));
  if (OffersCpu(call)) cpu_->TakeRows(call.hidden);
  if (own_choice) NoteOwnChoice(request.residency, routing);
  return absl::OkStatus();
}

absl::StatusOr<const int32_t*> CudaExecutor::PlaceSlots(const ExecutorCall& call,
                                                        const GivenRouting& given,
                                                        const PolicyContext* late,
                                                        const VersionedStore& store) {
  DeviceScope scope(device_);
  return fetch_.Place(call, given, late, store);
}

absl::Status CudaExecutor::LeaveSlots(void* stream) {
  DeviceScope scope(device_);
  return fetch_.Leave(static_cast<cudaStream_t>(stream));
}

absl::Status CudaExecutor::BringHostRows(const ExecutorCall& call) {
  if (host_rows_.size() < call.hidden.rows * call.hidden.cols) {
    host_rows_ = AlignedArray<float>(parts_.max_tokens * extent_.hidden);
  }
  ++host_syncs_;
  return BringRows(call.hidden, Stream(call), rows_arrived_, host_rows_.data());
}

absl::Status CudaExecutor::ScoreNext(const ExecutorCall& call, bool /*filled*/,
                                     std::vector<float>* scores) {
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(BringHostRows(call));
  return parts_.router->Score(call.layer + 1, host_rows_.data(), call.tokens, scores);
}

}  // namespace moert::cuda
