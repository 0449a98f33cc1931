#include "exec/cuda/memory/residency_table.h"

#include <algorithm>
#include <climits>

#include "base/status_macros.h"
#include "exec/cuda/workspace.h"
#include "kernels/cuda/cache/slot_table.h"

namespace moert::cuda {

absl::Status ResidencyTable::Init(const MoeModelSpec* model, const DeviceModel* on_device,
                                  ExpertHandle* table) {
  model_ = model;
  on_device_ = on_device;
  table_ = table;
  shadow_.resize(HandleCount(*model));
  dirty_layers_.assign(model->layers.size(), 1);
  std::vector<ExpertHandle> rows(shadow_.size());
  for (int l = 0; l < model->num_layers(); ++l) {
    const LayerOnDevice& layer = on_device->layer(l);
    if (layer.shared_record == nullptr) continue;
    const int64_t at = layer.first_handle + model->layers[l].num_experts;
    rows[at] = {reinterpret_cast<const uint8_t*>(layer.shared_record),
                static_cast<int32_t>(layer.shared_format), 0};
  }
  return CopyNow(table_, rows.data(), rows.size() * sizeof(rows[0]), cudaMemcpyHostToDevice);
}

absl::Status ResidencyTable::Set(int layer, int expert, const moert::ExpertHandle& handle,
                                 cudaStream_t stream) {
  dirty_layers_[layer] = 1;
  return Write({layer, expert}, handle, stream);
}

absl::Status ResidencyTable::Write(ExpertKey key, const moert::ExpertHandle& handle,
                                   cudaStream_t stream) {
  const int64_t index = on_device_->layer(key.layer).first_handle + key.expert;
  moert::ExpertHandle& shadow = shadow_[index];
  if (shadow.record == handle.record && shadow.layout == handle.layout &&
      shadow.version == handle.version) {
    return absl::OkStatus();
  }
  shadow = handle;
  updates_.index[updates_.count] = static_cast<int32_t>(index);
  updates_.handle[updates_.count] = {
      reinterpret_cast<const uint8_t*>(handle.record),
      handle.layout == nullptr ? 0 : static_cast<int32_t>(on_device_->FormatOf(handle.layout)),
      handle.version};
  return ++updates_.count < TableUpdates::kMax ? absl::OkStatus() : Flush(stream);
}

absl::Status ResidencyTable::Flush(cudaStream_t stream) {
  if (updates_.count == 0) return absl::OkStatus();
  const absl::Status status =
      ToStatus(LaunchUpdateTable(table_, updates_, stream), "updating the residency table");
  if (!status.ok()) {
    // The rows may not have been written: make the next sync find them different.
    constexpr moert::ExpertHandle kUnknown{nullptr, nullptr, INT_MIN};
    for (int i = 0; i < updates_.count; ++i) shadow_[updates_.index[i]] = kUnknown;
    std::fill(dirty_layers_.begin(), dirty_layers_.end(), uint8_t{1});
  }
  updates_.count = 0;
  return status;
}

absl::Status ResidencyTable::SyncLayer(const VersionedStore& store, int layer, int64_t epoch,
                                       cudaStream_t stream) {
  for (int e = 0; e < model_->layers[layer].num_experts; ++e) {
    MOERT_RETURN_IF_ERROR(Set(layer, e, store.Resolve({layer, e}, epoch), stream));
  }
  return Flush(stream);
}

absl::Status ResidencyTable::SyncNewest(VersionedStore* store, int64_t epoch, cudaStream_t stream) {
  changed_.clear();
  store->TakeChanges(&changed_);
  for (const ExpertKey key : changed_) {
    MOERT_RETURN_IF_ERROR(Write(key, store->Resolve(key, epoch), stream));
  }
  for (int l = 0; l < model_->num_layers(); ++l) {
    if (!dirty_layers_[l]) continue;
    MOERT_RETURN_IF_ERROR(SyncLayer(*store, l, epoch, stream));
    dirty_layers_[l] = 0;
  }
  return Flush(stream);
}

namespace {

int64_t Entries(const ExpertNumbering& numbering) {
  int64_t entries = 0;
  for (const std::vector<int32_t>& layer : numbering) entries += static_cast<int64_t>(layer.size());
  return entries;
}

}  // namespace

int64_t ShardNumbers::Bytes(const ExpertNumbering& numbering, int64_t pairs) {
  if (numbering.empty()) return 0;
  Carver count;
  count.Take<int32_t>(Entries(numbering));
  count.Take<int32_t>(pairs);
  return count.used();
}

absl::Status ShardNumbers::Init(const ExpertNumbering& numbering, int64_t pairs) {
  if (numbering.empty()) return absl::OkStatus();
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& layer : numbering) {
    first_.push_back(static_cast<int32_t>(all.size()));
    experts_.push_back(static_cast<int32_t>(layer.size()));
    all.insert(all.end(), layer.begin(), layer.end());
  }
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(Bytes(numbering, pairs)));
  Carver carver(memory_.data());
  auto* table = carver.Take<int32_t>(static_cast<int64_t>(all.size()));
  MOERT_RETURN_IF_ERROR(
      CopyNow(table, all.data(), all.size() * sizeof(all[0]), cudaMemcpyHostToDevice));
  table_ = table;
  ids_ = carver.Take<int32_t>(pairs);
  return absl::OkStatus();
}

absl::StatusOr<GivenRouting> ShardNumbers::Own(int layer, const GivenRouting& given,
                                               cudaStream_t stream) {
  if (!any()) return given;
  FindSlotsArgs args;
  args.ids = given.ids;
  args.table = table_ + first_[layer];
  args.own_ids = given.used_ids;
  args.slots = ids_;
  args.pairs = static_cast<int32_t>(given.pairs);
  args.experts = experts_[layer];
  MOERT_CUDA_RETURN_IF_ERROR(LaunchFindSlots(args, stream));
  GivenRouting own = given;
  own.ids = ids_;
  own.used_ids = nullptr;
  return own;
}

}  // namespace moert::cuda
