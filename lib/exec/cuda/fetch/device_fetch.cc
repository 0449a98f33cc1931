#include "exec/cuda/fetch/device_fetch.h"

#include "base/rows.h"
#include "base/status_macros.h"

namespace moert::cuda {
namespace {

constexpr int32_t kUnknown = -2;  // differs from any slot and from -1: the next sync writes it

}  // namespace

int64_t DeviceFetch::Bytes(const MoeModelSpec& model) {
  Carver count;
  count.Take<int32_t>(model.total_experts());
  return count.used();
}

absl::Status DeviceFetch::Init(const MoeModelSpec* model, int32_t* ids, float* weights,
                               RoutingReturn* returned, ComputeFence* fence) {
  model_ = model;
  returned_ = returned;
  fence_ = fence;
  w_.ids = ids;
  w_.weights = weights;
  for (const MoeLayerSpec& layer : model->layers) {
    first_.push_back(static_cast<int32_t>(shadow_.size()));
    shadow_.resize(shadow_.size() + static_cast<size_t>(layer.num_experts), -1);
  }
  captured_.assign(model->layers.size(), 0);
  MOERT_ASSIGN_OR_RETURN(table_, Buffer::Device(Bytes(*model)));
  return FillNow(table_.data(), 0xff, static_cast<size_t>(table_.bytes()));
}

absl::StatusOr<const int32_t*> DeviceFetch::Place(const ExecutorCall& call,
                                                  const GivenRouting& given,
                                                  const PolicyContext* late,
                                                  const VersionedStore& store) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  if (call.capturing) {
    captured_[call.layer] = 1;
    any_captured_ = true;
    MOERT_RETURN_IF_ERROR(Find(call, given));
  } else {
    MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
    absl::Status status = Enqueue(call, given, late, store);
    status.Update(fence_->Pass(stream));  // also behind a failure
    MOERT_RETURN_IF_ERROR(status);
  }
  return reinterpret_cast<const int32_t*>(table_.data()) + first_[call.layer];
}

absl::Status DeviceFetch::Enqueue(const ExecutorCall& call, const GivenRouting& given,
                                  const PolicyContext* late, const VersionedStore& store) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  MOERT_RETURN_IF_ERROR(Sync(store, call.layer, call.epoch, stream));
  MOERT_RETURN_IF_ERROR(Find(call, given));
  if (late == nullptr) return absl::OkStatus();
  return returned_->BringLate(w_, *late, call.tokens, /*ruled=*/false, stream, /*given=*/true);
}

absl::Status DeviceFetch::Leave(cudaStream_t stream) {
  // Replays lie within a step, whose end passes the fence.
  const absl::StatusOr<bool> capturing = IsCapturing(stream);
  if (!capturing.ok()) fence_->Miss();
  MOERT_RETURN_IF_ERROR(capturing.status());
  return *capturing ? absl::OkStatus() : fence_->Pass(stream);
}

absl::Status DeviceFetch::Find(const ExecutorCall& call, const GivenRouting& given) {
  if (given.pairs == 0) return absl::OkStatus();
  const MoeLayerSpec& spec = model_->layers[call.layer];
  FindSlotsArgs args;
  args.ids = given.ids;
  args.weights = given.weights;
  args.table = reinterpret_cast<const int32_t*>(table_.data()) + first_[call.layer];
  args.own_ids = w_.ids;
  args.own_weights = w_.weights;
  args.slots = given.used_ids;
  args.pairs = static_cast<int32_t>(given.pairs);
  args.experts = spec.num_experts;
  args.even_weight = 1.0f / static_cast<float>(spec.routing.top_k);
  return MOERT_CUDA_STATUS(LaunchFindSlots(args, static_cast<cudaStream_t>(call.stream)));
}

absl::Status DeviceFetch::Sync(const VersionedStore& store, int layer, int64_t epoch,
                               cudaStream_t stream) {
  MOERT_ASSIGN_OR_RETURN(const SlotRegion region, store.Slots(layer));
  for (int32_t e = 0; e < model_->layers[layer].num_experts; ++e) {
    const int32_t slot = region.SlotOf(store.Resolve({layer, e}, epoch).record);
    int32_t& shadow = shadow_[first_[layer] + e];
    if (shadow == slot) continue;
    shadow = slot;
    updates_.index[updates_.count] = first_[layer] + e;
    updates_.slot[updates_.count] = slot;
    if (++updates_.count == SlotUpdates::kMax) MOERT_RETURN_IF_ERROR(Flush(stream));
  }
  return Flush(stream);
}

absl::Status DeviceFetch::Flush(cudaStream_t stream) {
  if (updates_.count == 0) return absl::OkStatus();
  const int error = LaunchUpdateSlots(reinterpret_cast<int32_t*>(table_.data()), updates_, stream);
  if (error != 0) {
    for (int i = 0; i < updates_.count; ++i) shadow_[updates_.index[i]] = kUnknown;
  }
  updates_.count = 0;
  return ToStatus(error, "updating the table of slots");
}

absl::Status DeviceFetch::OpenStep(const VersionedStore& store, int64_t epoch,
                                   cudaStream_t stream) {
  if (!any_captured_) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
  if (capturing) return absl::OkStatus();
  MOERT_RETURN_IF_ERROR(fence_->Enter(stream));
  for (size_t l = 0; l < captured_.size(); ++l) {
    if (captured_[l] == 0) continue;
    MOERT_RETURN_IF_ERROR(Sync(store, static_cast<int>(l), epoch, stream));
  }
  return absl::OkStatus();
}

absl::Status BringRows(const MatrixView& rows, cudaStream_t stream, cudaEvent_t arrived,
                       float* to) {
  const int64_t element = DTypeBytes(rows.dtype);
  const auto row_bytes = static_cast<size_t>(rows.cols * element);
  std::vector<std::byte> packed(row_bytes * static_cast<size_t>(rows.rows));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(
      packed.data(), row_bytes, rows.data, static_cast<size_t>(rows.row_stride * element),
      row_bytes, static_cast<size_t>(rows.rows), cudaMemcpyDeviceToHost, stream));
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(arrived, stream));
  MOERT_CUDA_RETURN_IF_ERROR(AwaitEvent(arrived));
  WidenRows({packed.data(), rows.dtype, rows.rows, rows.cols, rows.cols}, to);
  return absl::OkStatus();
}

absl::Status BringRouting(const GivenRouting& given, int experts, cudaStream_t stream,
                          cudaEvent_t arrived, std::vector<int32_t>* ids,
                          std::vector<float>* weights) {
  const auto bytes = static_cast<size_t>(given.pairs) * 4;
  ids->resize(given.pairs);
  weights->resize(given.weights != nullptr ? static_cast<size_t>(given.pairs) : 0);
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(ids->data(), given.ids, bytes, cudaMemcpyDeviceToHost, stream));
  if (given.weights != nullptr) {
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(weights->data(), given.weights, bytes, cudaMemcpyDeviceToHost, stream));
  }
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(arrived, stream));
  MOERT_CUDA_RETURN_IF_ERROR(AwaitEvent(arrived));
  for (int32_t& id : *ids) id = id >= 0 && id < experts ? id : -1;
  return absl::OkStatus();
}

}  // namespace moert::cuda
