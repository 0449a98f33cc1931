// The inputs that a step's kernels read about its rows. They are in device memory and written once
// per step, so that a captured step can be replayed for other tokens, positions and sequences.
#ifndef MOERT_EXAMPLES_HOST_CUDA_STEP_INPUTS_H_
#define MOERT_EXAMPLES_HOST_CUDA_STEP_INPUTS_H_

#include <cstdint>

namespace moert::host {

/// Most rows of a sequence in a step of decode attention, which processes each row by itself.
constexpr int kDecodeRows = 8;

struct RowInput {
  int32_t token = 0;
  int32_t position = 0;
  int32_t sequence = 0;  // index into the step's sequences
  int32_t before = 0;    // earlier rows of its sequence in the step
};

/// The state after a sequence's earlier positions. Layers are counted within their kind.
struct SequenceCache {
  /// bf16 [attention layers][kv heads][capacity][head_dim]; values with fewer channels are padded
  /// with zeros. Latent attention: [attention layers][capacity][key_dim], and no values.
  uint16_t* keys = nullptr;
  uint16_t* values = nullptr;
  int64_t capacity = 0;
  int32_t rope_set = 0;
  /// Index of the current one of a delta net's two states; a step writes the other.
  int32_t state = 0;
  /// [delta nets][2][floats of a state].
  float* states = nullptr;
};

/// Query rows of one sequence, at consecutive positions, that a block of prefill attention takes.
struct QueryTile {
  static constexpr int kRows = 64;
  int32_t first_row = 0;
  int32_t rows = 0;  // at most kRows
};

/// All in device memory.
struct StepInputs {
  const RowInput* rows = nullptr;
  const SequenceCache* sequences = nullptr;
  const QueryTile* tiles = nullptr;  // prefill attention only
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_STEP_INPUTS_H_
