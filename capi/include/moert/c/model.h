/* model.h: what the library has to know of a model: its MoE layers. Since 0.1. */
#ifndef MOERT_C_MODEL_H_
#define MOERT_C_MODEL_H_

#include "moert/c/error.h"

MOERT_BEGIN_C

/* How router logits become the experts of a token and their weights. */
typedef int32_t moert_routing_kind;
enum moert_routing_kind_values {
  MOERT_ROUTING_INVALID = -1,
  MOERT_ROUTING_SOFTMAX_TOPK = 0,          /* softmax over all, then the k highest (Qwen, OLMoE) */
  MOERT_ROUTING_TOPK_SOFTMAX = 1,          /* the k highest, then softmax over them (Mixtral) */
  MOERT_ROUTING_SIGMOID_GROUPED = 2,       /* sigmoid + bias, best groups, top-k (DeepSeek-V3) */
  MOERT_ROUTING_SPARSEMIXER = 3,           /* two masked-softmax picks (Phi-3.5-MoE) */
  MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED = 4, /* as the grouped sigmoid, with sqrt(softplus) */
  MOERT_ROUTING_TOPK_SIGMOID = 5,          /* the k highest, weights their sigmoids (Llama-4) */
  MOERT_ROUTING_EXTERNAL = 6 /* the host's own: no gate is read, layer calls bring their routing;
                              * of the routing fields top_k alone is read */
};

typedef int32_t moert_activation;
enum moert_activation_values {
  MOERT_ACTIVATION_INVALID = -1,
  MOERT_SILU = 0,
  MOERT_GELU = 1,
  MOERT_GELU_TANH = 2,
  MOERT_RELU2 = 3 /* max(x, 0) squared */
};

/* One MoE layer. Layers are numbered 0..L-1 over the MoE layers only. */
typedef struct moert_layer_spec {
  uint64_t struct_size;
  /* Shape. */
  int64_t hidden;
  int64_t intermediate;
  int64_t shared_intermediate; /* 0: no shared expert; several are one wide one */
  int32_t num_experts;
  int32_t model_layer; /* the host's own number, ascending */
  moert_activation activation;
  int32_t shared_gate; /* 1: sigmoid(w . x) times the shared expert's output */
  /* Routing. */
  moert_routing_kind routing;
  int32_t top_k;
  int32_t renormalize;    /* 1: divide the k weights by their sum */
  int32_t selection_bias; /* 1: a bias per expert that selects and never weighs */
  int32_t num_groups;     /* of neighbouring experts (grouped and softmax top-k), else 1 */
  int32_t top_groups;     /* of which this many stay eligible, else 1 */
  float scaling;          /* of the weights, usually 1 */
  float sparsemixer_eps;  /* sparsemixer: 2 * jitter_eps masks; usually 0.01 */
  int32_t logit_bias;     /* 1: a bias per expert is added to the router's logits */
  int32_t weight_input;   /* 1: weights multiply an expert's input, not its output (Llama-4) */
  int32_t expert_scales;  /* 1: a constant per expert multiplies its weight, at the end */
  int32_t hash_vocab;     /* above 0: experts by token id, ids below this (moert_step_options) */
  /* Between the products: h = f(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset), where
   * silu is x * sigmoid(alpha * x); ungated: h = f(up), and there is no gate matrix. */
  int32_t ungated;
  int32_t expert_bias;    /* 1: gate, up and down of every routed expert have biases */
  float activation_alpha; /* silu; usually 1 */
  float activation_limit; /* 0: nothing is clamped */
  float up_offset;        /* usually 0 */
  int32_t reserved;       /* 0 */
} moert_layer_spec;

/* Defaults: silu, softmax then top-k of 1, no renormalization, no shared expert. */
MOERT_API void moert_layer_spec_init(moert_layer_spec* spec, uint64_t size);

/* A packed matrix inside a record (docs/reference/layout.md). Sizes are elements unless the name
 * says bytes. It never changes. */
typedef struct moert_matrix {
  const char* scheme; /* "bf16", "w4a16_g128", ... Static */
  int64_t rows;
  int64_t k;
  int64_t padded_rows;
  int64_t padded_k;
  int64_t group;         /* k when per output channel */
  int64_t weight_offset; /* bytes from the start of the record */
  int64_t weight_bytes;
  int64_t scale_offset;
  int64_t scale_bytes; /* 0 for bf16 */
} moert_matrix;

MOERT_END_C

#endif /* MOERT_C_MODEL_H_ */
