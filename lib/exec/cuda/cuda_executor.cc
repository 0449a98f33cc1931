#include "exec/cuda/cuda_executor.h"

#include <algorithm>

#include "base/errors.h"
#include "base/rows.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "exec/cuda/cuda_executor_impl.h"
#include "kernels/cuda/few/group_gemm.h"
#include "route/grouping.h"

namespace moert::cuda {

absl::Status CudaExecutor::Init() {
  DeviceScope scope(device_);
  shares_ = GroupGemmShares();
  if (shares_ == 0) {
    return absl::UnimplementedError("the kernels of this build do not run on this device");
  }
  prompt_device_ = FindPromptDevice();
  Carver count;
  w_.Carve(model_, extent_, &count);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  w_.Carve(model_, extent_, &carver);
  if (w_.ones != nullptr) {
    const std::vector<float> ones(static_cast<size_t>(extent_.pairs), 1.0f);
    MOERT_RETURN_IF_ERROR(
        CopyNow(w_.ones, ones.data(), ones.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  MOERT_RETURN_IF_ERROR(on_device_.Init(parts_, w_.token_ids, options_.numerics));
  MOERT_RETURN_IF_ERROR(table_.Init(&model_, &on_device_, w_.handles));
  MOERT_RETURN_IF_ERROR(returned_.Init(&model_, extent_));
  MOERT_RETURN_IF_ERROR(selections_.Init(w_.tally, HandleCount(model_)));
  MOERT_RETURN_IF_ERROR(rule_.Init(w_.rule, parts_.max_tokens));
  if (parts_.numbering != nullptr) {
    MOERT_RETURN_IF_ERROR(numbers_.Init(*parts_.numbering, extent_.pairs));
  }
  MOERT_RETURN_IF_ERROR(fetch_.Init(&model_, w_.ids, w_.weights, &returned_, fence_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&rows_arrived_, cudaEventDisableTiming));
  if (parts_.cpu_offload) {
    const auto spin = parts_.pool->num_threads() < UsableCpus() ? kSpinWithDevice : kSpinAlone;
    MOERT_ASSIGN_OR_RETURN(
        cpu_, CpuExperts::Create(model_, parts_.gemm, parts_.max_tokens, spin, options_.cpus));
  }
  return absl::OkStatus();
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
    if (record == nullptr) {
      return absl::InternalError("an expert for the CPU is not in host memory");
    }
    on_cpu_.push_back({e, record, &options_.records->layout(call.layer, e, version)});
  }
  cpu_->Begin(routing, on_cpu_, Spec(call));
  return absl::OkStatus();
}

absl::Status CudaExecutor::JoinCpu(const ExecutorCall& call, int64_t* took_ns) {
  *took_ns = 0;
  if (cpu_ == nullptr || !cpu_->busy()) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(cpu_->Join(took_ns));
  const int rows = cpu_->num_rows();
  cpu_->Forget();
  DeviceScope scope(device_);
  // The host waits for the stream before the next call's Begin, so the rows stay valid until the
  // kernel has read them.
  return MOERT_CUDA_STATUS(LaunchPlaceRows(cpu_->rows(), cpu_->slots(), rows,
                                           static_cast<int>(Spec(call).hidden), w_.out,
                                           Prompt(call).any(), extent_.hidden, Stream(call)));
}

absl::Status CudaExecutor::RouteWhole(const ExecutorCall& call, const GivenRouting* given,
                                      const RoutingRule* rule, bool served, LastRouting* last) {
  if (given == nullptr) {
    if (last != nullptr) {
      if (rule != nullptr) last->rule = RuleOf(call, *rule);
      return PrepareFew(call, nullptr, /*tallied=*/true, &last->route);
    }
    if (Few(call)) return RouteFew(call, nullptr, rule, call.capturing, /*tiles=*/!served);
    MOERT_RETURN_IF_ERROR(RouteOnDevice(call));
    return rule != nullptr ? ApplyRule(call, *rule) : absl::OkStatus();
  }
  const cudaStream_t stream = Stream(call);
  MOERT_ASSIGN_OR_RETURN(const GivenRouting own, numbers_.Own(call.layer, *given, stream));
  if (last != nullptr) return PrepareFew(call, &own, /*tallied=*/true, &last->route);
  if (Few(call)) return RouteFew(call, &own, nullptr, call.capturing, /*tiles=*/!served);
  return MOERT_CUDA_STATUS(LaunchAdoptRouting(
      own.ids, own.weights, static_cast<int>(own.pairs), Spec(call).num_experts,
      on_device_.layer(call.layer).expert_scales, w_.ids, w_.weights, own.used_ids, stream));
}

absl::Status CudaExecutor::RunWhole(const ExecutorCall& call, const PolicyContext& context,
                                    const VersionedStore& store, const GivenRouting* given,
                                    const RoutingRule* rule) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  const bool capturing = call.capturing;
  const bool few = Few(call);
  const bool served = capturing && served_ != nullptr;
  if (served && served_->reads_below() && !few) {
    return FailedPrecondition(
        "the stream is being captured: a call of {} rows, where pinned memory does not hold every "
        "record (host_budget): the CPU has part in calls of up to {}",
        call.hidden.rows, kFewTokens);
  }
  if (capturing) {
    // A replay reads the handles from the table, which OpenStep keeps up to date.
    captured_ = true;
  } else {
    MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
    MOERT_RETURN_IF_ERROR(table_.SyncLayer(store, call.layer, call.epoch, stream));
  }
  const bool at_once = served && ServesAndRoutes(call);
  LastRouting last;
  const auto bring = [&]() -> absl::Status {
    if (capturing) return absl::OkStatus();
    return returned_.BringLate(w_, context, call.hidden.rows, false, stream, given != nullptr);
  };
  const auto enqueue = [&]() -> absl::Status {
    if (given == nullptr) MOERT_RETURN_IF_ERROR(BringTokenIds(call));
    if (given == nullptr && !served && ProductsRoute(call)) {
      MOERT_RETURN_IF_ERROR(RouteInProducts(call, capturing));
      MOERT_RETURN_IF_ERROR(bring());
      return WeightedSum(call, false);
    }
    MOERT_RETURN_IF_ERROR(RouteWhole(call, given, rule, served, at_once ? &last : nullptr));
    MOERT_RETURN_IF_ERROR(bring());
    if (!few) MOERT_RETURN_IF_ERROR(GroupAndPack(call, capturing));
    if (served) {
      MOERT_RETURN_IF_ERROR(ServedProducts(call, context.phase, given != nullptr,
                                           at_once ? &last.route : nullptr,
                                           at_once && rule != nullptr ? &last.rule : nullptr));
    } else if (few) {
      MOERT_RETURN_IF_ERROR(TileProducts(call, /*narrow=*/false, w_.table, shares_, stream));
    } else {
      MOERT_RETURN_IF_ERROR(Products(call, AllExperts(call), table_.rows(call.layer)));
    }
    return WeightedSum(call, given != nullptr);
  };
  absl::Status status = enqueue();
  // After a failure too, the forked branches of a capture have to be joined.
  if (served && !status.ok()) status.Update(served_->Join(stream));
  if (!capturing) status.Update(fence_->Pass(stream));  // also after a failure
  return status;
}

absl::Status CudaExecutor::RunResident(const ExecutorCall& call, const PolicyContext& context,
                                       const RoutingRule& rule, const VersionedStore& store) {
  const bool own_choice = rule.kind == RoutingRuleKind::kTopK;
  if (!own_choice && (!call.capturing || served_ == nullptr)) {
    return absl::InternalError("a call by a rule that is not replayed");
  }
  return RunWhole(call, context, store, nullptr, own_choice ? nullptr : &rule);
}

absl::Status CudaExecutor::RunGiven(const ExecutorCall& call, const GivenRouting& given,
                                    const PolicyContext& context, const VersionedStore& store) {
  return RunWhole(call, context, store, &given, nullptr);
}

absl::Status CudaExecutor::BringGiven(const ExecutorCall& call, const GivenRouting& given,
                                      std::vector<int32_t>* ids, std::vector<float>* weights) {
  DeviceScope scope(device_);
  const cudaStream_t stream = Stream(call);
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  MOERT_ASSIGN_OR_RETURN(const GivenRouting own, numbers_.Own(call.layer, given, stream));
  ++host_syncs_;
  return BringRouting(own, Spec(call).num_experts, stream, rows_arrived_, ids, weights);
}

absl::Status CudaExecutor::ReturnUsed(const ExecutorCall& call, absl::Span<const int32_t> used,
                                      int32_t* to) {
  if (numbers_.any()) return absl::OkStatus();  // BringGiven has written them already
  DeviceScope scope(device_);
  // The source is pageable: it has been read when the call returns.
  return MOERT_CUDA_STATUS(
      cudaMemcpyAsync(to, used.data(), used.size() * 4, cudaMemcpyHostToDevice, Stream(call)));
}

bool CudaExecutor::TakeRouting(PolicyContext* context, RoutingResult* routing) {
  DeviceScope scope(device_);
  return returned_.Take(context, routing);
}

bool CudaExecutor::TakeSelections(std::vector<SelectionCount>* added) {
  DeviceScope scope(device_);
  return selections_.Take(added);
}

absl::Status CudaExecutor::OpenStep(VersionedStore* store, int64_t epoch, const StepRows& rows,
                                    void* stream) {
  DeviceScope scope(device_);
  const auto order = static_cast<cudaStream_t>(stream);
  MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(order));
  if (!capturing) {  // else a replay will lie in another step
    if (captured_) {
      if (served_ != nullptr && served_->must_return()) MOERT_RETURN_IF_ERROR(TakeBack(store));
      MOERT_RETURN_IF_ERROR(fence_->Enter(order));
      MOERT_RETURN_IF_ERROR(served_ != nullptr ? served_->Lend(store, order)
                                               : table_.SyncNewest(store, epoch, order));
      if (served_ != nullptr) {
        const absl::Status prepared = PrepareServed(order);
        if (!prepared.ok()) {
          (void)fence_->Pass(order);  // for the copy that lent the blocks
          return prepared;
        }
      }
      if (served_ != nullptr && parts_.served.by_request()) {
        const absl::Status begun =
            rule_.BeginStep(w_.rule, rows.request_ids, parts_.max_tokens, order);
        if (!begun.ok()) {
          (void)fence_->Pass(order);  // for the copy that lent the blocks
          return begun;
        }
      }
    }
    absl::Status opened = fetch_.OpenStep(*store, epoch, order);
    // Upload token ids for replays; eager calls upload their own.
    if (opened.ok() && w_.token_ids != nullptr && !rows.token_ids.empty()) {
      opened = fence_->Enter(order);
      if (opened.ok()) opened = UploadTokenIds(rows.token_ids, order);
      opened.Update(fence_->Pass(order));
    }
    if (!opened.ok()) {
      (void)fence_->Pass(order);  // for the copy that lent the blocks
      return opened;
    }
  }
  if (served_ != nullptr) open_streams_.push_back(order);
  return absl::OkStatus();
}

absl::Status CudaExecutor::CloseStep(void* stream) {
  DeviceScope scope(device_);
  const auto order = static_cast<cudaStream_t>(stream);
  // A captured stream has no pending work. The fence is passed after a failure too, because replays
  // use the blocks.
  const absl::StatusOr<bool> capturing = IsCapturing(order);
  absl::Status status = capturing.status();
  if (!status.ok()) {
    fence_->Miss();
  } else if (!*capturing) {
    status = fence_->Pass(order);
  }
  if (const auto it = std::find(open_streams_.begin(), open_streams_.end(), order);
      it != open_streams_.end()) {
    open_streams_.erase(it);  // the host may destroy the stream now
  }
  if (!capturing.ok() || *capturing) return status;
  // Counts are copied after every step: whether it replayed a graph is not known.
  if (captured_) status.Update(selections_.Bring(order));
  if (captured_ && served_ != nullptr) status.Update(served_->BringCounts(order));
  return status;
}

absl::StatusOr<int64_t> ExecutorBytes(const ExpertSource& source, absl::Span<const int> versions,
                                      int64_t max_tokens, const ExpertNumbering* numbering,
                                      const ServedRules& served, ActivationNumerics numerics) {
  MOERT_ASSIGN_OR_RETURN(const OperandUse use, OperandsOf(source, versions, numerics));
  const MoeModelSpec& model = source.model();
  Carver count;
  Workspace w{};
  const Extent extent(model, use, max_tokens, numbering, served);
  w.Carve(model, extent, &count);
  const int64_t numbers = numbering != nullptr ? ShardNumbers::Bytes(*numbering, extent.pairs) : 0;
  return count.used() + DeviceFetch::Bytes(model) + numbers;
}

absl::StatusOr<std::unique_ptr<Executor>> MakeCudaExecutor(const ExecutorParts& parts,
                                                           const CudaExecutorOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const OperandUse use,
                         OperandsOf(*parts.source, parts.versions, options.numerics));
  auto executor = std::make_unique<CudaExecutor>(parts, use, options);
  MOERT_RETURN_IF_ERROR(executor->Init());
  return executor;
}

}  // namespace moert::cuda
