#include "host/cuda/step_upload.h"

#include <algorithm>
#include <memory>

#include "host/cuda/attention_kernel.h"
#include "host/cuda/delta_net_kernel.h"
#include "host/cuda/latent_kernel.h"
#include "util/status_macros.h"

namespace moert::host {

using gpu::Buffer;

absl::StatusOr<std::unique_ptr<DeviceSequence>> DeviceSequence::Create(const HfConfig& config,
                                                                       const Rope& rope,
                                                                       int64_t max_tokens) {
  const int64_t nets =
      std::count_if(config.mixers.begin(), config.mixers.end(),
                    [](const MixerConfig& mixer) { return mixer.kind == MixerKind::kDeltaNet; });
  std::unique_ptr<DeviceSequence> sequence(new DeviceSequence(max_tokens, nets == 0));
  const int64_t positions = (config.num_hidden_layers - nets) * max_tokens;
  const LatentAttentionConfig& l = config.latent;
  const DeltaNetConfig& d = config.delta_net;
  int64_t channels = 0;
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    if (config.mixers[i].kind == MixerKind::kDeltaNet) continue;
    channels += config.KvHeads(i) * config.HeadDim(i);
  }
  const int64_t grouped = channels * max_tokens;
  const int64_t keys = l.kv_rank > 0 ? positions * LatentKeyDim(l.kv_rank, l.rope_dim) : grouped;
  SequenceCache& cache = sequence->cache_;
  const auto carve = [&](gpu::Carver* c) {
    cache.keys = c->Take<uint16_t>(keys);
    cache.values = c->Take<uint16_t>(l.kv_rank > 0 ? 0 : grouped);
    const DeltaNetStateSize state =
        StateSizeOf(d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.kernel);
    cache.states = c->Take<float>(2 * nets * (state.recurrent + state.history));
  };
  gpu::Carver count;
  carve(&count);
  MOERT_ASSIGN_OR_RETURN(sequence->memory_, Buffer::Device(count.used()));
  gpu::Carver carver(sequence->memory_.data());
  carve(&carver);
  cache.capacity = max_tokens;
  cache.rope_set = rope.SetOf(max_tokens);
  return sequence;
}

StepUpload::~StepUpload() {
  for (Slot& slot : slots_) {
    if (slot.copied != nullptr) cudaEventDestroy(slot.copied);
  }
}

// Layout: rows, then as many sequences, then as many tiles.
int64_t StepUpload::SequencesAt(int64_t rows) {
  return rows * static_cast<int64_t>(sizeof(RowInput));
}
int64_t StepUpload::TilesAt(int64_t rows) {
  return SequencesAt(rows) + rows * static_cast<int64_t>(sizeof(SequenceCache));
}

absl::Status StepUpload::Init(int64_t max_rows) {
  const int64_t bytes = TilesAt(max_rows) + max_rows * static_cast<int64_t>(sizeof(QueryTile));
  MOERT_ASSIGN_OR_RETURN(device_, Buffer::Device(bytes));
  for (Slot& slot : slots_) {
    MOERT_ASSIGN_OR_RETURN(slot.memory, Buffer::Pinned(bytes));
    RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming));
  }
  return absl::OkStatus();
}

absl::Status StepUpload::Enqueue(absl::Span<const SequenceInput> inputs, cudaStream_t stream,
                                 StepShape* shape) {
  *shape = {};
  int64_t last_position = 0, most_rows = 0;
  for (const SequenceInput& input : inputs) {
    const auto added = static_cast<int64_t>(input.tokens.size());
    shape->rows += added;
    most_rows = std::max(most_rows, added);
    last_position = std::max(last_position, input.cache->length() + added - 1);
  }
  while (shape->pieces < PiecesFor(last_position)) shape->pieces *= 2;

  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  // Waits only if the host ran ahead of the device.
  if (cudaEventQuery(slot.copied) == cudaErrorNotReady) {
    cudaGetLastError();  // clears cudaErrorNotReady, which is no failure
    RETURN_IF_CUDA_ERROR(cudaEventSynchronize(slot.copied));
  }
  auto* row = reinterpret_cast<RowInput*>(slot.memory.data());
  auto* sequence = reinterpret_cast<SequenceCache*>(slot.memory.data() + SequencesAt(shape->rows));
  auto* const tiles = reinterpret_cast<QueryTile*>(slot.memory.data() + TilesAt(shape->rows));
  const bool prefill = most_rows > kDecodeRows;
  int32_t index = 0, first_row = 0;
  for (const SequenceInput& input : inputs) {
    const auto added = static_cast<int32_t>(input.tokens.size());
    if (added == 0) continue;
    for (int32_t i = 0; i < added; ++i) {
      *row++ = {input.tokens[i], static_cast<int32_t>(input.cache->length() + i), index, i};
    }
    *sequence++ = static_cast<DeviceSequence*>(input.cache)->cache();
    for (int32_t i = 0; prefill && i < added; i += QueryTile::kRows) {
      tiles[shape->tiles++] = {first_row + i, std::min(added - i, int32_t{QueryTile::kRows})};
    }
    first_row += added;
    ++index;
  }
  const int64_t bytes =
      TilesAt(shape->rows) + shape->tiles * static_cast<int64_t>(sizeof(QueryTile));
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(device_.data(), slot.memory.data(),
                                       static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream));
  RETURN_IF_CUDA_ERROR(cudaEventRecord(slot.copied, stream));
  return absl::OkStatus();
}

StepInputs StepUpload::inputs(const StepShape& shape) const {
  return {reinterpret_cast<const RowInput*>(device_.data()),
          reinterpret_cast<const SequenceCache*>(device_.data() + SequencesAt(shape.rows)),
          reinterpret_cast<const QueryTile*>(device_.data() + TilesAt(shape.rows))};
}

}  // namespace moert::host
