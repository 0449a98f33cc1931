// ServedMisses: blocks of the store on their way to the device, and back.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/status_macros.h"
#include "exec/cuda/cache/served_misses.h"
#include "store/lent_blocks.h"

namespace moert::cuda {

absl::Status ServedMisses::Copy(bool to_device, bool layers_alone, cudaStream_t stream) {
  const auto bytes = layers_alone ? model_->layers.size() * sizeof(ServedLayer)
                                  : static_cast<size_t>(table_bytes_);
  void* device = on_device_.table.layers;
  void* host = table_.layers;
  return MOERT_CUDA_STATUS(
      to_device ? cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream)
                : cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}

void ServedMisses::PlaceLoan(int layer, const LentLayer& loan, VersionedStore* store) {
  table_.layers[layer] = {loan.tick, static_cast<int32_t>(loan.slots.size()), 1, loan.calls,
                          loan.inserted};
  table_.prefetch[layer] = LayerPrefetch{};
  ServedExpert* experts = table_.experts + First(layer);
  std::fill_n(experts, model_->layers[layer].num_experts, ServedExpert{});
  std::fill_n(table_.slots + First(layer), model_->layers[layer].num_experts, nullptr);
  for (size_t s = 0; s < loan.slots.size(); ++s) {
    const LentSlot& slot = loan.slots[s];
    table_.slots[First(layer) + static_cast<int64_t>(s)] =
        reinterpret_cast<uint8_t*>(store->pool(0).Address(slot.block));
    if (slot.expert < 0) continue;
    experts[slot.expert] = {slot.last_used, slot.tokens, static_cast<int32_t>(s)};
  }
  std::copy(loan.use.begin(), loan.use.end(), table_.use + First(layer));
  std::copy(loan.sums.begin(), loan.sums.end(), table_.sums + First(layer));
  std::copy(loan.scores.begin(), loan.scores.end(), ScoresOf(table_, layer));
}

absl::Status ServedMisses::Lend(VersionedStore* store, cudaStream_t stream) {
  if (lent_ || !store->Lend(&loans_)) return absl::OkStatus();
  records_->LeavePeers();  // the device writes the blocks from here on
  // If the copy to the device fails, the blocks are taken back at once and the device goes on
  // without slots.
  lent_ = true;
  for (int l = 0; l < model_->num_layers(); ++l) PlaceLoan(l, loans_[l], store);
  const absl::Status status = Copy(/*to_device=*/true, /*layers_alone=*/false, stream);
  if (!status.ok()) {
    store->TakeBack(loans_);
    lent_ = false;
  }
  return status;
}

ServedMisses::BlockPlaces ServedMisses::PlacesOf(VersionedStore* store) const {
  BlockPlaces blocks;
  for (const LentLayer& loan : loans_) {
    for (const LentSlot& slot : loan.slots) {
      blocks[reinterpret_cast<uint8_t*>(store->pool(0).Address(slot.block))] = slot.block;
    }
  }
  return blocks;
}

void ServedMisses::TakeLoan(int layer, const BlockPlaces& blocks, LentLayer* loan) {
  const ServedLayer& state = table_.layers[layer];
  ServedExpert* const experts = table_.experts + First(layer);
  const LayerPrefetch& list = table_.prefetch[layer];
  for (int i = 0; list.settled == 0 && i < list.count; ++i) {  // no copy of the list runs any more
    const PrefetchedRecord& record = list.records[i];
    const PrefetchEnd end = EndOfPrefetch(record.state, record.done, /*wanted=*/false);
    SettlePrefetch(record, end, state.tick, experts);
  }
  loan->tick = state.tick;
  loan->calls = state.calls;
  loan->inserted = state.inserted;
  loan->use.assign(table_.use + First(layer), table_.use + First(layer) + loan->use.size());
  std::copy_n(table_.sums + First(layer), loan->sums.size(), loan->sums.begin());
  std::copy_n(ScoresOf(table_, layer), loan->scores.size(), loan->scores.begin());
  const int num_experts = model_->layers[layer].num_experts;
  std::vector<int32_t> held(static_cast<size_t>(num_experts), -1);  // expert by slot
  const bool whole = unfinished_[layer] == 0;
  for (int e = 0; whole && e < num_experts; ++e) {
    if (experts[e].slot >= 0) held[experts[e].slot] = e;
  }
  loan->slots.clear();
  for (int s = 0; s < num_experts; ++s) {
    const auto place = blocks.find(table_.slots[First(layer) + s]);
    if (place == blocks.end()) continue;  // no slot
    LentSlot slot{place->second};
    slot.expert = held[s];
    if (slot.expert >= 0) {
      slot.last_used = experts[slot.expert].last_used;
      slot.tokens = experts[slot.expert].tokens;
    }
    loan->slots.push_back(slot);
  }
}

absl::Status ServedMisses::TakeBack(VersionedStore* store) {
  if (!lent_) return absl::OkStatus();
  MOERT_CUDA_RETURN_IF_ERROR(beside_.Await());
  MOERT_RETURN_IF_ERROR(Copy(/*to_device=*/false, /*layers_alone=*/false, own_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(own_));
  const BlockPlaces blocks = PlacesOf(store);
  for (int l = 0; l < model_->num_layers(); ++l) {
    TakeLoan(l, blocks, &loans_[l]);
    table_.layers[l].lent = 0;
  }
  // From here on replays of open steps find that the host owns the slots.
  returning_ = true;
  MOERT_RETURN_IF_ERROR(Copy(/*to_device=*/true, /*layers_alone=*/true, own_));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(own_));
  store->TakeBack(loans_);
  lent_ = returning_ = in_doubt_ = false;
  std::fill(unfinished_.begin(), unfinished_.end(), 0);
  return absl::OkStatus();
}

}  // namespace moert::cuda
