// Kernels for tokens: embedding, choice and score of the next token; and the activation of dense
// feed-forward blocks.
#ifndef MOERT_EXAMPLES_HOST_CUDA_TOKEN_KERNELS_H_
#define MOERT_EXAMPLES_HOST_CUDA_TOKEN_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "host/cuda/step_inputs.h"

struct CUstream_st;

namespace moert::host {

// All of these return a cudaError_t.

/// out[r] = table[rows[r].token]; table bf16 [vocabulary, width], out fp32 [rows, width].
int LaunchEmbed(const RowInput* inputs, const uint16_t* table, int rows, int width, float* out,
                CUstream_st* stream);

/// out = act(gate) * up, bf16 [rows, width]; gate_up fp32 [rows, 2 width], gate first. activation:
/// moert::Activation.
int LaunchGatedActivation(const float* gate_up, int activation, int rows, int width, uint16_t* out,
                          CUstream_st* stream);

/// y[r] += bias; y fp32 [rows, width].
int LaunchAddBias(float* y, const float* bias, int rows, int width, CUstream_st* stream);

/// Results of LaunchBest where there is no best token.
constexpr int32_t kNotFinite = -1;
constexpr int32_t kNotANumber = -2;

/// Bytes of `scratch` for a launch.
int64_t BestBytes(int64_t rows);
/// best[r]: index of the highest of logits [rows, vocabulary], the lowest index among equals.
/// scratch: used on one stream only; zeros at the first launch.
int LaunchBest(const float* logits, int rows, int vocabulary, std::byte* scratch, int32_t* best,
               CUstream_st* stream);

/// nll[r] = ln sum exp(logits[r]) - logits[r][targets[r]], summed in fp64.
int LaunchScore(const float* logits, const int32_t* targets, int rows, int vocabulary, double* nll,
                CUstream_st* stream);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CUDA_TOKEN_KERNELS_H_
