#include "exec/cuda/cuda_executor.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/rows.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"
#include "kernels/cuda/group_gemm.h"
#include "route/grouping.h"

namespace moert::cuda {

absl::Status CudaExecutor::Init() {
  DeviceScope scope(device_);
  const RelaxedCapture relaxed;
  shares_ = GroupGemmShares();
  if (shares_ == 0) {
    return absl::UnimplementedError("the kernels of this build do not run on this device");
  }
  prompt_ctas_ = PromptGemmCtas();
  Carver count;
  w_.Carve(extent_, HandleCount(model_), &count);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  w_.Carve(extent_, HandleCount(model_), &carver);
  MOERT_RETURN_IF_ERROR(on_device_.Init(parts_));
  MOERT_RETURN_IF_ERROR(table_.Init(&model_, &on_device_, w_.handles));
  MOERT_RETURN_IF_ERROR(returned_.Init(&model_, extent_));
  MOERT_RETURN_IF_ERROR(selections_.Init(w_.tally, HandleCount(model_)));
  MOERT_RETURN_IF_ERROR(rule_.Init(w_.rule));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&rows_arrived_, cudaEventDisableTiming));
  if (parts_.cpu_offload) {
    const auto spin = parts_.pool->num_threads() < UsableCpus() ? kSpinWithDevice : kSpinAlone;
    MOERT_ASSIGN_OR_RETURN(
        cpu_, CpuExperts::Create(model_, parts_.gemm, parts_.max_tokens, spin, options_.cpus));
  }
  // The copies and fills above are the default stream's.
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Enter(cudaStream_t stream) {
  if (any_stream_ && stream != last_stream_) {
    MOERT_RETURN_IF_ERROR(fence_->Wait(fence_->Now(), stream));
  }
  last_stream_ = stream;
  any_stream_ = true;
  return absl::OkStatus();
}

absl::Status CudaExecutor::RouteOnDevice(const ExecutorCall& call, const RoutingRequest* ruled,
                                         const RuleMirror& mirror, bool next_gate) {
  const cudaStream_t stream = Stream(call);
  const auto tokens = static_cast<int>(call.hidden.rows);
  const LayerOnDevice& layer = on_device_.layer(call.layer);
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGateLogits(Rows(call), layer.gate, layer.routing.num_experts, w_.scores, stream));
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchTopK(layer.routing, tokens, w_.scores, w_.ids, w_.weights, stream));
  if (ruled != nullptr) {
    MOERT_RETURN_IF_ERROR(rule_.Run(w_, layer.routing, tokens, ruled->rule, ruled->request_ids,
                                    table_.rows(call.layer), mirror, stream));
  }
  if (!next_gate) return absl::OkStatus();
  const LayerOnDevice& next = on_device_.layer((call.layer + 1) % model_.num_layers());
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGateLogits(Rows(call), next.gate, next.routing.num_experts, w_.next_scores, stream));
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchTopK(next.routing, tokens, w_.next_scores, w_.next_ids, w_.next_weights, stream));
  return absl::OkStatus();
}

absl::Status CudaExecutor::GroupAndPack(const ExecutorCall& call, bool tallied) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int>(call.hidden.rows);
  const int pairs = tokens * spec.routing.top_k;
  SelectionTally* tally = tallied ? w_.tally + on_device_.layer(call.layer).first_handle : nullptr;
  MOERT_CUDA_RETURN_IF_ERROR(
      LaunchGroup(w_.ids, pairs, spec.num_experts, w_.groups, stream, w_.weights, tally));
  if (HasShared(call)) {
    MOERT_CUDA_RETURN_IF_ERROR(LaunchIota(w_.shared_slots, pairs, tokens, stream));
  }
  const PromptPlan prompt = Prompt(call);
  if (prompt.any()) {
    MOERT_CUDA_RETURN_IF_ERROR(
        LaunchRoundRows(Rows(call), w_.prompt_x, extent_.prompt_x_stride(), stream));
    if (!prompt.others) return absl::OkStatus();
  }
  for (int i = 0; i < kOperands; ++i) {
    if (w_.x[i] == nullptr) continue;
    MOERT_CUDA_RETURN_IF_ERROR(LaunchPackRows(Rows(call), i, w_.x[i], extent_.x_stride(), stream));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::RouteOnHost(const ExecutorCall& call, const RoutingRequest& request,
                                       RoutingResult* routing) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const int64_t tokens = call.hidden.rows;
  const int64_t row_bytes = spec.hidden * DTypeBytes(call.hidden.dtype);
  std::vector<std::byte> rows(static_cast<size_t>(tokens * row_bytes));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(
      rows.data(), static_cast<size_t>(row_bytes), call.hidden.data,
      static_cast<size_t>(call.hidden.row_stride * DTypeBytes(call.hidden.dtype)),
      static_cast<size_t>(row_bytes), static_cast<size_t>(tokens), cudaMemcpyDeviceToHost, stream));
  MOERT_RETURN_IF_ERROR(WaitForRows(stream));
  if (host_rows_.size() < tokens * spec.hidden) {
    host_rows_ = AlignedArray<float>(parts_.max_tokens * extent_.hidden);
  }
  WidenRows({rows.data(), call.hidden.dtype, tokens, spec.hidden, spec.hidden}, host_rows_.data());
  if (cpu_ != nullptr) cpu_->SetRows(host_rows_.data(), tokens, spec.hidden);
  MOERT_RETURN_IF_ERROR(parts_.router->Route(call.layer, host_rows_.data(), tokens, request.rule,
                                             request.residency, request.request_ids,
                                             request.next_gate, routing));
  return UploadRouting(call, *routing);
}

absl::Status CudaExecutor::WaitForRows(cudaStream_t stream) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(rows_arrived_, stream));
  ++host_syncs_;
  MOERT_CUDA_RETURN_IF_ERROR(AwaitEvent(rows_arrived_));
  return absl::OkStatus();
}

absl::Status CudaExecutor::UploadRouting(const ExecutorCall& call, const RoutingResult& routing) {
  // Small and pageable: the copies have left the vectors when the calls return.
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
  MOERT_RETURN_IF_ERROR(Enter(stream));
  given_ = true;
  if (CpuOffload(call)) {
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
  MOERT_RETURN_IF_ERROR(Enter(stream));
  given_ = false;
  const bool own_choice = request.rule.kind == RoutingRuleKind::kTopK;
  if (!own_choice) {
    if (!DeviceRule::Executes(Spec(call).routing, request.rule)) {
      return RouteOnHost(call, request, routing);
    }
    // The rule goes by the table.
    MOERT_RETURN_IF_ERROR(table_.SyncLayer(*request.store, call.layer, call.epoch, stream));
  }
  if (CpuOffload(call)) MOERT_RETURN_IF_ERROR(cpu_->BringRows(call.hidden, stream));
  MOERT_RETURN_IF_ERROR(RouteOnDevice(call, own_choice ? nullptr : &request,
                                      returned_.RuleOf(/*late=*/false), request.next_gate));
  MOERT_RETURN_IF_ERROR(
      returned_.Bring(w_, call.layer, call.hidden.rows, request.next_gate, !own_choice, stream));
  MOERT_RETURN_IF_ERROR(GroupAndPack(call));  // beside the host's wait
  ++host_syncs_;
  MOERT_RETURN_IF_ERROR(returned_.Wait(routing));
  if (CpuOffload(call)) cpu_->TakeRows(call.hidden);
  if (own_choice) NoteOwnChoice(request.residency, routing);
  return absl::OkStatus();
}

PromptPlan CudaExecutor::Prompt(const ExecutorCall& call) const {
  const auto bytes = static_cast<uint64_t>(call.hidden.rows * extent_.prompt_x_stride());
  if (prompt_ctas_ == 0 || bytes >> 32 != 0) return {};
  return PlanPrompt(extent_.use.prompt, Spec(call), call.hidden.rows);
}

absl::Status CudaExecutor::PromptProducts(const ExecutorCall& call, const PromptPlan& plan,
                                          const ExpertSet& wave) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int32_t>(call.hidden.rows);
  MakePromptTilesArgs tiles;
  tiles.table = w_.prompt;
  tiles.most = plan.most;
  tiles.packings = plan.packings;
  tiles.formats = on_device_.formats();
  tiles.handles = table_.rows(call.layer);
  tiles.groups = w_.groups;
  tiles.shared_slots = w_.shared_slots;
  tiles.experts = spec.num_experts;
  tiles.tokens = tokens;
  tiles.wave = wave;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchMakePromptTiles(tiles, stream));
  PromptGemmArgs gemm;
  gemm.table = w_.prompt;
  gemm.most = plan.most;
  std::copy(std::begin(plan.of_product), std::end(plan.of_product), gemm.packings);
  gemm.x = w_.prompt_x;
  gemm.x_stride = extent_.prompt_x_stride();
  gemm.h = w_.h;
  gemm.h_stride = extent_.prompt_h_stride();
  gemm.out = reinterpret_cast<uint16_t*>(w_.out);
  gemm.out_stride = extent_.hidden;
  gemm.pairs = tokens * spec.routing.top_k;
  gemm.top_k = spec.routing.top_k;
  gemm.activation = static_cast<int32_t>(spec.activation.function);
  gemm.ctas = prompt_ctas_;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPromptProducts(gemm, stream));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Products(const ExecutorCall& call, const ExpertSet& wave) {
  const cudaStream_t stream = Stream(call);
  const MoeLayerSpec& spec = Spec(call);
  const auto tokens = static_cast<int32_t>(call.hidden.rows);
  const PromptPlan prompt = Prompt(call);
  if (prompt.any()) {
    MOERT_RETURN_IF_ERROR(PromptProducts(call, prompt, wave));
    if (!prompt.others) return absl::OkStatus();
  }
  MakeTilesArgs tiles;
  tiles.table = w_.table;
  tiles.formats = on_device_.formats();
  tiles.handles = table_.rows(call.layer);
  tiles.groups = w_.groups;
  tiles.shared_slots = w_.shared_slots;
  tiles.experts = spec.num_experts;
  tiles.tokens = tokens;
  tiles.shares = shares_;
  tiles.prompt_packings = prompt.packings;
  tiles.wave = wave;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchMakeTiles(tiles, stream));
  GroupGemmArgs gemm;
  gemm.table = w_.table;
  std::copy(std::begin(w_.x), std::end(w_.x), gemm.x);
  gemm.h = w_.h;
  gemm.wide_h = w_.wide_h;
  gemm.out = w_.out;
  if (prompt.any()) gemm.narrow_out = reinterpret_cast<uint16_t*>(w_.out);
  gemm.x_stride = extent_.x_stride();
  gemm.h_stride = extent_.h_stride();
  gemm.wide_h_stride = extent_.intermediate;
  gemm.out_stride = extent_.hidden;
  gemm.pairs = tokens * spec.routing.top_k;
  gemm.top_k = spec.routing.top_k;
  gemm.hidden = static_cast<int32_t>(spec.hidden);
  gemm.activation = static_cast<int32_t>(spec.activation.function);
  gemm.shares = shares_;
  if (!extent_.use.wide_h) {
    MOERT_CUDA_RETURN_IF_ERROR(LaunchProducts(gemm, stream));
    return absl::OkStatus();
  }
  MOERT_CUDA_RETURN_IF_ERROR(LaunchGateUp(gemm, stream));
  PackHiddenArgs pack;
  pack.table = w_.table;
  pack.wide_h = w_.wide_h;
  pack.wide_h_stride = extent_.intermediate;
  pack.h = w_.h;
  pack.h_stride = extent_.h_stride();
  pack.shares = shares_;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPackHidden(pack, stream));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchDown(gemm, stream));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Multiply(const ExecutorCall& call, const RoutingResult& /*routing*/,
                                    absl::Span<const ReadyExpert> experts, bool first) {
  const bool shared = first && HasShared(call);
  if (experts.empty() && !shared) return absl::OkStatus();
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  ExpertSet set;
  for (const ReadyExpert& ready : experts) {
    MOERT_RETURN_IF_ERROR(table_.Set(call.layer, ready.expert, ready.handle, stream));
    set.Add(ready.expert);
  }
  MOERT_RETURN_IF_ERROR(table_.Flush(stream));
  if (shared) set.Add(Spec(call).num_experts);
  absl::Status status = Products(call, set);
  status.Update(fence_->Pass(stream));  // also behind a failure: some kernels may be enqueued
  return status;
}

bool CudaExecutor::CpuCanCompute(ExpertKey key, int64_t tokens) const {
  return cpu_ != nullptr && tokens <= cpu_->max_tokens() &&
         options_.records->KeptRecord(key, parts_.versions[0]) != nullptr;
}

absl::Status CudaExecutor::BeginCpu(const ExecutorCall& call, const RoutingResult& routing,
                                    absl::Span<const int32_t> experts) {
  const int version = parts_.versions[0];
  on_cpu_.clear();
  for (const int32_t e : experts) {
    const std::byte* record = options_.records->KeptRecord({call.layer, e}, version);
    if (record == nullptr)
      return absl::InternalError("an expert for the CPU is not in host memory");
    on_cpu_.push_back({e, record, &options_.records->layout(call.layer, e, version)});
  }
  cpu_->Begin(routing, on_cpu_, Spec(call).activation);
  return absl::OkStatus();
}

absl::Status CudaExecutor::JoinCpu(const ExecutorCall& call, int64_t* took_ns) {
  *took_ns = 0;
  if (cpu_ == nullptr || !cpu_->busy()) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(cpu_->Join(took_ns));
  const int rows = cpu_->num_rows();
  cpu_->Forget();
  DeviceScope scope(device_);
  // The host waits for the stream before the next call's Begin, so the rows stay until they are
  // fetched.
  MOERT_CUDA_RETURN_IF_ERROR(LaunchPlaceRows(cpu_->rows(), cpu_->slots(), rows,
                                             static_cast<int>(Spec(call).hidden), w_.out,
                                             Prompt(call).any(), extent_.hidden, Stream(call)));
  return absl::OkStatus();
}

absl::Status CudaExecutor::WeightedSum(const ExecutorCall& call, bool given) {
  CombineArgs combine;
  combine.x = Rows(call);
  combine.slots = w_.out;
  combine.narrow = Prompt(call).any();
  combine.slot_stride = extent_.hidden;
  combine.weights = w_.weights;
  if (given) combine.ids = w_.ids;
  combine.shared_gate = on_device_.layer(call.layer).shared_gate;
  combine.shared = HasShared(call);
  combine.top_k = Spec(call).routing.top_k;
  combine.out = call.out.data;
  combine.out_dtype = static_cast<int32_t>(call.out.dtype);
  combine.out_stride = call.out.row_stride;
  MOERT_CUDA_RETURN_IF_ERROR(LaunchCombine(combine, Stream(call)));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Combine(const ExecutorCall& call, const RoutingResult& /*routing*/) {
  DeviceScope scope(device_);
  MOERT_RETURN_IF_ERROR(WeightedSum(call, given_));
  return fence_->Pass(Stream(call));
}

ExpertSet CudaExecutor::AllExperts(const ExecutorCall& call) const {
  ExpertSet all;
  for (int e = 0; e < Spec(call).num_experts; ++e) all.Add(e);
  if (HasShared(call)) all.Add(Spec(call).num_experts);
  return all;
}

absl::Status CudaExecutor::RunWhole(const ExecutorCall& call, const PolicyContext& context,
                                    const VersionedStore& store, bool given,
                                    absl::FunctionRef<absl::Status()> route) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  const bool capturing = Capturing(call.stream);
  if (capturing) {
    // The handles are read at replay, from the table as OpenStep keeps it.
    captured_ = true;
  } else {
    MOERT_RETURN_IF_ERROR(Enter(stream));
    MOERT_RETURN_IF_ERROR(table_.SyncLayer(store, call.layer, call.epoch, stream));
  }
  const auto enqueue = [&]() -> absl::Status {
    MOERT_RETURN_IF_ERROR(route());
    if (!capturing) {
      MOERT_RETURN_IF_ERROR(
          returned_.BringLate(w_, context, call.hidden.rows, false, stream, given));
    }
    MOERT_RETURN_IF_ERROR(GroupAndPack(call, capturing));
    MOERT_RETURN_IF_ERROR(Products(call, AllExperts(call)));
    return WeightedSum(call, given);
  };
  absl::Status status = enqueue();
  if (!capturing) status.Update(fence_->Pass(stream));  // also behind a failure
  return status;
}

absl::Status CudaExecutor::RunResident(const ExecutorCall& call, const PolicyContext& context,
                                       const VersionedStore& store) {
  return RunWhole(call, context, store, /*given=*/false,
                  [&] { return RouteOnDevice(call, nullptr, {}, false); });
}

absl::Status CudaExecutor::RunGiven(const ExecutorCall& call, const GivenRouting& given,
                                    const PolicyContext& context, const VersionedStore& store) {
  return RunWhole(call, context, store, /*given=*/true, [&]() -> absl::Status {
    MOERT_CUDA_RETURN_IF_ERROR(LaunchAdoptRouting(
        given.ids, given.weights, static_cast<int>(given.pairs), Spec(call).num_experts, w_.ids,
        w_.weights, given.used_ids, Stream(call)));
    return absl::OkStatus();
  });
}

absl::Status CudaExecutor::BringGiven(const ExecutorCall& call, const GivenRouting& given,
                                      std::vector<int32_t>* ids, std::vector<float>* weights) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  const auto bytes = static_cast<size_t>(given.pairs) * 4;
  ids->resize(static_cast<size_t>(given.pairs));
  weights->resize(static_cast<size_t>(given.pairs));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(ids->data(), given.ids, bytes, cudaMemcpyDeviceToHost, stream));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(weights->data(), given.weights, bytes, cudaMemcpyDeviceToHost, stream));
  MOERT_RETURN_IF_ERROR(WaitForRows(stream));
  const int32_t experts = Spec(call).num_experts;
  for (int32_t& id : *ids) id = id >= 0 && id < experts ? id : -1;
  return absl::OkStatus();
}

absl::Status CudaExecutor::ReturnUsed(const ExecutorCall& call, absl::Span<const int32_t> used,
                                      int32_t* to) {
  DeviceScope scope(device_);
  // Pageable: the copy has left the span when the call returns.
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(to, used.data(), used.size() * 4, cudaMemcpyHostToDevice, Stream(call)));
  return absl::OkStatus();
}

bool CudaExecutor::Capturing(void* stream) const {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture) == cudaSuccess &&
         capture != cudaStreamCaptureStatusNone;
}

bool CudaExecutor::TakeRouting(PolicyContext* context, RoutingResult* routing) {
  DeviceScope scope(device_);
  return returned_.Take(context, routing);
}

bool CudaExecutor::TakeSelections(std::vector<SelectionCount>* added) {
  DeviceScope scope(device_);
  return selections_.Take(added);
}

absl::Status CudaExecutor::OpenStep(VersionedStore* store, int64_t epoch, void* stream) {
  if (captured_) {
    DeviceScope scope(device_);
    MOERT_RETURN_IF_ERROR(Enter(static_cast<cudaStream_t>(stream)));
    MOERT_RETURN_IF_ERROR(table_.SyncNewest(store, epoch, static_cast<cudaStream_t>(stream)));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::CloseStep(void* stream) {
  DeviceScope scope(device_);
  const auto order = static_cast<cudaStream_t>(stream);
  // Replays cannot be told from steps without them.
  if (captured_) MOERT_RETURN_IF_ERROR(selections_.Bring(order));
  return fence_->Pass(order);
}

absl::StatusOr<int64_t> ExecutorBytes(const ExpertSource& source, absl::Span<const int> versions,
                                      int64_t max_tokens) {
  MOERT_ASSIGN_OR_RETURN(const OperandUse use, OperandsOf(source, versions));
  const MoeModelSpec& model = source.model();
  Carver count;
  Workspace w{};
  w.Carve(Extent(model, use, max_tokens), HandleCount(model), &count);
  return count.used();
}

absl::StatusOr<std::unique_ptr<Executor>> MakeCudaExecutor(const ExecutorParts& parts,
                                                           const CudaExecutorOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const OperandUse use, OperandsOf(*parts.source, parts.versions));
  auto executor = std::make_unique<CudaExecutor>(parts, use, options);
  MOERT_RETURN_IF_ERROR(executor->Init());
  return executor;
}

}  // namespace moert::cuda
