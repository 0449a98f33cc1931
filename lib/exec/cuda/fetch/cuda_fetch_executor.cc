#include "exec/cuda/fetch/cuda_fetch_executor.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/errors.h"
#include "base/spin.h"
#include "base/status_macros.h"
#include "moert/tools/machine.h"

namespace moert::cuda {
namespace {

/// The device memory of calls.
struct FetchBuffers {
  int32_t* ids;
  float* weights;
  ServedBuffers served;
  ExpertHandle* no_shared;
  float* next_scores;  // [experts of a layer]
  int32_t* slots;      // [all experts]

  FetchBuffers(const MoeModelSpec& model, const Extent& extent, Carver* carver)
      : ids(carver->Take<int32_t>(extent.pairs)), weights(carver->Take<float>(extent.pairs)) {
    served.Carve(model, extent, carver);
    no_shared = carver->Take<ExpertHandle>(1);
    next_scores = carver->Take<float>(extent.experts);
    slots = carver->Take<int32_t>(model.total_experts());
  }
};

DeviceRows RowsOf(const MatrixView& rows) {
  return {rows.data, static_cast<int32_t>(rows.dtype), static_cast<int32_t>(rows.rows),
          static_cast<int32_t>(rows.cols), rows.row_stride};
}

/// The rules that determine the buffers of fetches.
ServedRules ForBuffers(const ServedRules& rules) {
  ServedRules kept;
  kept.balance = rules.balance;
  return kept;
}

}  // namespace

CudaFetchExecutor::CudaFetchExecutor(const ExecutorParts& parts, const CudaExecutorOptions& options)
    : FetchExecutor(parts),
      model_(parts.source->model()),
      device_(options.device),
      fence_(options.fence),
      records_(options.records),
      paced_(options.paced),
      cpus_(options.cpus),
      extent_(model_, OperandUse{}, parts.max_tokens, nullptr, ForBuffers(parts.served)),
      captured_(model_.layers.size()) {
  int64_t total = 0;
  for (const MoeLayerSpec& layer : model_.layers) {
    first_.push_back(total);
    total += layer.num_experts;
  }
}

CudaFetchExecutor::~CudaFetchExecutor() {
  leaving_.emplace(device_);
  fence_->Await();  // the host's kernels in steps read the tables that are freed here
  if (arrived_ != nullptr) cudaEventDestroy(arrived_);
}

int64_t CudaFetchExecutor::Bytes(const MoeModelSpec& model, int64_t max_tokens,
                                 const ServedRules& rules) {
  Carver count;
  FetchBuffers(model, Extent(model, OperandUse{}, max_tokens, nullptr, ForBuffers(rules)), &count);
  return count.used() + DeviceFetch::Bytes(model);
}

absl::Status CudaFetchExecutor::Init() {
  DeviceScope scope(device_);
  Carver count;
  FetchBuffers(model_, extent_, &count);
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  Carver carver(memory_.data());
  const FetchBuffers buffers(model_, extent_, &carver);
  served_buffers_ = buffers.served;
  no_shared_ = buffers.no_shared;
  next_scores_ = buffers.next_scores;
  served_slots_ = buffers.slots;
  MOERT_RETURN_IF_ERROR(FillNow(no_shared_, 0, sizeof *no_shared_));
  MOERT_RETURN_IF_ERROR(returned_.Init(&model_, extent_));
  MOERT_RETURN_IF_ERROR(fetch_.Init(&model_, buffers.ids, buffers.weights, &returned_, fence_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming));
  MOERT_ASSIGN_OR_RETURN(side_, MakeSideStream(device_));
  return parts().cpu_offload ? StartCpu() : absl::OkStatus();
}

absl::Status CudaFetchExecutor::StartCpu() {
  if (parts().source->product() == nullptr) {
    return FailedPrecondition(
        "strategy gives misses to the CPU, and the records of {} are opaque: give the source a "
        "product (OpaqueWeights::product, moert_opaque_options.product), or a strategy that brings "
        "every miss, such as fate or on-demand",
        parts().source->name());
  }
  // Only the thread of CpuExperts is used, not its products.
  const auto spin = parts().pool->num_threads() < UsableCpus() ? kSpinWithDevice : kSpinAlone;
  MOERT_ASSIGN_OR_RETURN(
      cpu_, CpuExperts::Create(model_, /*gemm=*/nullptr, /*max_tokens=*/1, spin, cpus_));
  return absl::OkStatus();
}

absl::Status CudaFetchExecutor::BeginCpu(const ExecutorCall& call, const RoutingResult&,
                                         absl::Span<const int32_t>) {
  return Check(call, {}, false);
}

absl::Status CudaFetchExecutor::JoinCpu(const ExecutorCall& call, int64_t*) {
  return Check(call, {}, false);
}

absl::StatusOr<const int32_t*> CudaFetchExecutor::PlaceSlots(const ExecutorCall& call,
                                                             const GivenRouting& given,
                                                             const PolicyContext* late,
                                                             const VersionedStore& store) {
  DeviceScope scope(device_);
  return fetch_.Place(call, given, late, store);
}

absl::Status CudaFetchExecutor::LeaveSlots(void* stream) {
  DeviceScope scope(device_);
  const auto order = static_cast<cudaStream_t>(stream);
  MOERT_RETURN_IF_ERROR(fetch_.Leave(order));
  return served_ != nullptr ? served_->Leave(order) : absl::OkStatus();
}

absl::Status CudaFetchExecutor::ScoreNext(const ExecutorCall& call, bool /*filled*/,
                                          std::vector<float>* scores) {
  DeviceScope scope(device_);
  ++host_syncs_;
  MOERT_RETURN_IF_ERROR(
      BringRows(call.hidden, static_cast<cudaStream_t>(call.stream), arrived_, x()));
  return parts().router->Score(call.layer + 1, x(), call.tokens, scores);
}

absl::Status CudaFetchExecutor::BringGiven(const ExecutorCall& call, const GivenRouting& given,
                                           std::vector<int32_t>* ids, std::vector<float>* weights) {
  DeviceScope scope(device_);
  ++host_syncs_;
  return BringRouting(given, model_.layers[call.layer].num_experts,
                      static_cast<cudaStream_t>(call.stream), arrived_, ids, weights);
}

bool CudaFetchExecutor::TakeRouting(PolicyContext* context, RoutingResult* routing) {
  DeviceScope scope(device_);
  return returned_.Take(context, routing);
}

absl::Status CudaFetchExecutor::OpenStep(VersionedStore* store, int64_t epoch,
                                         const StepRows& /*rows*/, void* stream) {
  DeviceScope scope(device_);
  const auto order = static_cast<cudaStream_t>(stream);
  if (product_ != nullptr) cpu_->Watch();
  if (product_ != nullptr || captured_.any()) MOERT_RETURN_IF_ERROR(PrepareServed(store, order));
  return fetch_.OpenStep(*store, epoch, order);
}

absl::Status CudaFetchExecutor::PrepareServed(VersionedStore* store, cudaStream_t stream) {
  MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
  if (capturing) return absl::OkStatus();
  const bool replays = captured_.any();
  if (replays && served_->must_return()) MOERT_RETURN_IF_ERROR(TakeBack(store));
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  absl::Status status;
  if (replays) {
    status = served_->Lend(store, stream);
    status.Update(served_->AwaitPrefetches(stream));
  }
  if (product_ != nullptr && status.ok()) {
    cpu_costs_.read = product_->records()->read_ns();
    status = served_->SetCosts(cpu_costs_, stream);
    if (status.ok()) status = served_->MoveRecords(stream);
  }
  status.Update(fence_->Pass(stream));
  MOERT_RETURN_IF_ERROR(status);
  if (!replays) return absl::OkStatus();
  return captured_.Check(*store, [this](int layer) { return served_->slots(layer); });
}

absl::Status CudaFetchExecutor::CloseStep(void* stream) {
  DeviceScope scope(device_);
  const auto order = static_cast<cudaStream_t>(stream);
  owed_ = -1;
  absl::Status status = fetch_.Leave(order);
  if (served_ != nullptr) status.Update(served_->BringCounts(order));
  return status;
}

absl::Status CudaFetchExecutor::CopyRecords(const ExecutorCall& call, const VersionedStore& store,
                                            absl::Span<const int32_t> experts, std::byte* to,
                                            int64_t stride) {
  DeviceScope scope(device_);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  const absl::Cleanup clear = [&] {
    copies_.Clear();
    copies_within_.Clear();
    copies_read_.Clear();
  };
  for (const int32_t e : experts) {
    const ExpertKey key{call.layer, e};
    const int version = parts().versions[0];
    const std::byte* const slot = store.Resolve(key, call.epoch).record;
    const std::byte* const from = slot != nullptr ? slot : records_->KeptRecord(key, version);
    if (from == nullptr) {
      copies_read_.Add(key, to + e * stride);
      continue;
    }
    (slot != nullptr ? copies_within_ : copies_)
        .Add(to + e * stride, from,
             static_cast<size_t>(records_->layout(key.layer, e, version).bytes));
  }
  absl::Status status = EnqueueCopies(stream);
  status.Update(fence_->Pass(stream));  // also after a failure: some copies may read blocks
  return status;
}

const std::byte* CudaFetchExecutor::RecordInRam(const VersionedStore& /*store*/, int64_t /*epoch*/,
                                                ExpertKey key) const {
  return records_->KeptRecord(key, parts().versions[0]);
}

absl::Status CudaFetchExecutor::EnqueueCopies(cudaStream_t stream) {
  MOERT_RETURN_IF_ERROR(EnqueueKept(stream));
  if (copies_read_.empty()) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
  if (capturing) {
    return absl::FailedPreconditionError(
        "the stream is being captured: records that pinned memory does not hold (host_budget) are "
        "read once, not at replay");
  }
  return copies_read_.Enqueue(records_->source(), parts().versions[0], parts().pool, stream);
}

// Copies within the device may have to wait while kernels occupy it. They are on a side stream, so
// copies over the link do not wait for them.
absl::Status CudaFetchExecutor::EnqueueKept(cudaStream_t stream) {
  const bool within = !copies_within_.empty();
  if (within) MOERT_RETURN_IF_ERROR(side_->Fork(stream));
  absl::Status status = copies_.Enqueue(stream);
  if (!within) return status;
  status.Update(copies_within_.Enqueue(static_cast<cudaStream_t>(side_->get())));
  status.Update(side_->Join(stream));
  return status;
}

absl::Status CudaFetchExecutor::ServeFetches(const VersionedStore& store) {
  if (parts().versions.size() != 1 || !store.pool(0).alike()) {
    return absl::FailedPreconditionError("its experts are served in several versions or sizes");
  }
  if (paced_) return absl::FailedPreconditionError("its link is paced (link_gbps)");
  DeviceScope scope(device_);
  const int version = parts().versions[0];
  ServedRules rules = parts().served;
  MOERT_RETURN_IF_ERROR(
      KeepRecords(records_, version, /*low=*/-1, cpu_ != nullptr && rules.cpu(), parts().pool));
  if (rules.score_window > 0) {
    return absl::FailedPreconditionError("its experts leave by scores, which nobody gives");
  }
  rules.by_gate = rules.by_gate && std::all_of(model_.layers.begin(), model_.layers.end(),
                                               [](const MoeLayerSpec& layer) {
                                                 return layer.routing.top_k <= kMaxTopK;
                                               });
  if (rules.by_gate) MOERT_RETURN_IF_ERROR(on_device_.Init(parts()));
  auto served = std::make_unique<ServedMisses>();
  MOERT_RETURN_IF_ERROR(
      served->Init(&model_, &on_device_, records_, version, rules, served_buffers_, no_shared_));
  if (cpu_ != nullptr && rules.cpu()) {
    MOERT_ASSIGN_OR_RETURN(
        auto product, FetchedProduct::Create({parts().source, records_, version, parts().profile,
                                              parts().pool, parts().max_tokens}));
    MOERT_RETURN_IF_ERROR(served->ShareMisses(product->memory()));
    product_ = std::move(product);
    cpu_->Attach(product_.get());
  }
  served_ = std::move(served);
  return absl::OkStatus();
}

absl::StatusOr<const int32_t*> CudaFetchExecutor::FetchServed(const ExecutorCall& call,
                                                              const GivenRouting& given,
                                                              VersionedStore* store) {
  // Without the CPU some experts could not be computed.
  if (served_->reads_below() && !Shares(given)) return nullptr;
  DeviceScope scope(device_);
  if (call.capturing) return FetchCaptured(call, given, *store);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  if (served_->must_return()) MOERT_RETURN_IF_ERROR(TakeBack(store));
  MOERT_ASSIGN_OR_RETURN(const SlotRegion region, store->Slots(call.layer));
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  absl::Status status = served_->Lend(store, stream);
  const bool fits = status.ok() && Fits(call, given, region);
  if (fits) status = ServeFetch(call, given, region);
  // Also after a failure, and if nothing was fetched: blocks are taken back only once the copy that
  // lent them is done.
  status.Update(fence_->Pass(stream));
  MOERT_RETURN_IF_ERROR(status);
  return fits ? served_slots_ + first_[call.layer] : nullptr;
}

bool CudaFetchExecutor::Fits(const ExecutorCall& call, const GivenRouting& given,
                             const SlotRegion& region) const {
  const bool all_differ = !given.any_slot || region.slots >= given.pairs / call.tokens;
  return served_->slots(call.layer) >= LeastSlots(given) && all_differ;
}

absl::StatusOr<const int32_t*> CudaFetchExecutor::FetchCaptured(const ExecutorCall& call,
                                                                const GivenRouting& given,
                                                                const VersionedStore& store) {
  MOERT_ASSIGN_OR_RETURN(const SlotRegion region, store.Slots(call.layer));
  if (served_->must_return() || !Fits(call, given, region)) return nullptr;
  captured_.Add(call.layer, LeastSlots(given), region);
  MOERT_RETURN_IF_ERROR(ServeFetch(call, given, region));
  return served_slots_ + first_[call.layer];
}

absl::Status CudaFetchExecutor::ServeFetch(const ExecutorCall& call, const GivenRouting& given,
                                           const SlotRegion& region) {
  ServedMisses::HostCall host;
  host.capturing = call.capturing;
  host.layer = call.layer;
  host.tokens = static_cast<int32_t>(call.tokens);
  host.given = given;
  host.region = region;
  host.table = served_slots_ + first_[call.layer];
  host.hidden = RowsOf(call.hidden);
  host.next_scores = next_scores_;
  const bool shares = Shares(given);
  if (shares) host.cpu_rows = RowsOf(given.cpu_rows);
  MOERT_RETURN_IF_ERROR(served_->Fetch(host, static_cast<cudaStream_t>(call.stream)));
  if (shares) owed_ = call.layer;
  return absl::OkStatus();
}

bool CudaFetchExecutor::Shares(const GivenRouting& given) const {
  // The device has at most one job in progress.
  return owed_ < 0 && given.cpu_rows.rows > 0 && given.cpu_rows.rows <= most_cpu_rows();
}

absl::Status CudaFetchExecutor::TakeCpuRows(const ExecutorCall& call,
                                            const MutableMatrixView& rows) {
  if (owed_ != call.layer) return absl::OkStatus();
  DeviceScope scope(device_);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
  if (!capturing) MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  absl::Status status = served_->AwaitRows(call.layer, rows, stream);
  if (status.ok()) owed_ = -1;
  if (!capturing) status.Update(fence_->Pass(stream));
  return status;
}

absl::Status CudaFetchExecutor::TakeCpuFailure() {
  if (product_ == nullptr) return absl::OkStatus();
  absl::Status failure = product_->TakeFailure();
  if (std::exchange(late_, false) && failure.ok()) {
    failure = absl::DeadlineExceededError(
        "the product on the CPU did not end in time: rows of a layer call are lost");
  }
  return failure;
}

absl::Status CudaFetchExecutor::TakeBack(VersionedStore* store) {
  if (!lent()) return absl::OkStatus();
  DeviceScope scope(device_);
  ++host_syncs_;
  MOERT_CUDA_RETURN_IF_ERROR(fence_->Await());
  return served_->TakeBack(store);
}

bool CudaFetchExecutor::TakeServed(ServedCount* added) {
  if (served_ == nullptr) return false;
  DeviceScope scope(device_);
  if (!served_->TakeCounts(added)) return false;
  if (product_ != nullptr) {
    product_->TakeTimes(added);
    added->cpu_read_bytes = product_->records()->TakeReadBytes();
    late_ = late_ || added->cpu_taken_back > 0 || added->cpu_lost > 0;
  }
  return true;
}

}  // namespace moert::cuda
