#include "host/cuda/step_upload.h"

#include <algorithm>
#include <memory>

#include "host/cuda/attention_kernel.h"
#include "util/status_macros.h"

namespace moert::host {

using gpu::Buffer;

absl::StatusOr<std::unique_ptr<DeviceSequence>> DeviceSequence::Create(const HfConfig& config,
                                                                       const Rope& rope,
                                                                       int64_t max_tokens) {
  std::unique_ptr<DeviceSequence> sequence(new DeviceSequence(max_tokens));
  const int64_t elements =
      config.num_hidden_layers * config.num_key_value_heads * config.head_dim * max_tokens;
  MOERT_ASSIGN_OR_RETURN(sequence->memory_, Buffer::Device(elements * 4));
  auto* const memory = reinterpret_cast<uint16_t*>(sequence->memory_.data());
  sequence->cache_ = {memory, memory + elements, max_tokens, rope.SetOf(max_tokens)};
  return sequence;
}

StepUpload::~StepUpload() {
  for (Slot& slot : slots_) {
    if (slot.copied != nullptr) cudaEventDestroy(slot.copied);
  }
}

// One after the other: rows, as many sequences, as many tiles.
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
  // No wait but for a host that ran ahead of the device.
  if (cudaEventQuery(slot.copied) == cudaErrorNotReady) {
    cudaGetLastError();  // which is how it is told, no error
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
