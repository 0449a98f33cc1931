/* A small MoE model out of a formula, as a host with weights of its own would supply one: the same
 * numbers in every language that spells the formula. C99. */
#ifndef MOERT_EXAMPLES_C_HOST_TINY_EXPERTS_H_
#define MOERT_EXAMPLES_C_HOST_TINY_EXPERTS_H_

#include <stdint.h>

#include "moert.h"

enum {
  kTinyLayers = 2,
  kTinyExperts = 8,
  kTinyTopK = 2,
  kTinyHidden = 64,
  kTinyIntermediate = 48
};

/* In [-1, 1), exact in fp32. */
static inline float tiny_value(uint32_t layer, uint32_t expert, uint32_t part, uint32_t index) {
  uint32_t h = (layer * 73856093u) ^ ((expert + 1u) * 19349663u) ^ ((part + 1u) * 83492791u) ^
               (index * 2654435761u);
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return (float)((int32_t)(h >> 8) - 8388608) / 8388608.0f;
}

/* Weights are an eighth of that, router logits and the input all of it. */
static inline float tiny_weight(int32_t layer, int32_t expert, int32_t part, int64_t index) {
  return (part == MOERT_PART_ROUTER ? 1.0f : 0.125f) *
         tiny_value((uint32_t)layer, (uint32_t)expert, (uint32_t)part, (uint32_t)index);
}

static inline float tiny_input(int64_t index) { return tiny_value(99u, 0u, 0u, (uint32_t)index); }

/* The read callback: weights_dtype is MOERT_F32. */
static inline moert_code tiny_read(void *user_data, const moert_read *read,
                                   moert_failure *failure) {
  float *dst = (float *)read->dst.data;
  const int64_t first = read->first_row * read->dst.cols;
  int64_t i;
  (void)user_data;
  (void)failure;
  for (i = 0; i < read->dst.rows * read->dst.cols; ++i) {
    dst[i] = tiny_weight(read->layer, read->expert, read->part, first + i);
  }
  return MOERT_OK;
}

static inline void tiny_layers(moert_layer_spec layers[kTinyLayers]) {
  int32_t l;
  for (l = 0; l < kTinyLayers; ++l) {
    moert_layer_spec_init(&layers[l], sizeof(layers[l]));
    layers[l].model_layer = l;
    layers[l].num_experts = kTinyExperts;
    layers[l].top_k = kTinyTopK;
    layers[l].hidden = kTinyHidden;
    layers[l].intermediate = kTinyIntermediate;
    layers[l].renormalize = 1;
  }
}

#endif /* MOERT_EXAMPLES_C_HOST_TINY_EXPERTS_H_ */
