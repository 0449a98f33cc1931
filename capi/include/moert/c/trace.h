/* trace.h: what an engine did, layer call by layer call (docs/reference/trace-format.md). Since
 * 0.1. */
#ifndef MOERT_C_TRACE_H_
#define MOERT_C_TRACE_H_

#include "moert/c/policy.h"

MOERT_BEGIN_C

/* When a layer call happened and where its time went, engine's clock. */
typedef struct moert_call_times {
  uint64_t struct_size;
  int64_t step_begin_ns; /* when the step began */
  int64_t begin_ns;
  int64_t end_ns;
  int64_t route_ns;    /* routing, prediction and planning */
  int64_t multiply_ns; /* all rounds of the grouped product */
  int64_t stalled_ns;  /* waiting for experts */
} moert_call_times;

MOERT_API void moert_call_times_init(moert_call_times *times, uint64_t size);

/* One layer call: T tokens, k experts each. Pointers are borrowed. */
typedef struct moert_trace_call {
  uint64_t struct_size;
  int64_t step;
  int32_t layer;
  moert_phase phase;
  int64_t tokens;
  int32_t top_k;
  int32_t num_experts;        /* E; 0 without scores */
  const int64_t *request_ids; /* [T], or NULL */
  const int32_t *ids;         /* [T, k], the experts used; -1: not on this rank */
  const float *weights;       /* [T, k] */
  const float *scores;        /* [T, E], or NULL */
  const float *next_scores;   /* [T, next_experts] of layer + 1 (0 after the last), or NULL */
  int64_t next_experts;
  const moert_call_times *times;
} moert_trace_call;

typedef int32_t moert_track;
enum moert_track_values {
  MOERT_TRACK_INVALID = -1,
  MOERT_TRACK_STEPS = 0,
  MOERT_TRACK_LAYERS = 1,
  MOERT_TRACK_STALLS = 2,
  MOERT_TRACK_LINK = 3 /* its spans may overlap */
};

/* Something that took time. -1: does not apply. */
typedef struct moert_trace_span {
  uint64_t struct_size;
  const char *name; /* borrowed */
  moert_track track;
  int64_t begin_ns;
  int64_t end_ns;
  int64_t step;
  int32_t layer;
  int32_t expert;
  int64_t bytes;
} moert_trace_span;

/* Sees every layer call. Called while the engine is locked, from one thread at a time: must not
 * call the engine. */
typedef struct moert_trace_sink {
  uint64_t struct_size;
  int32_t wants_next_scores; /* 1: calls carry next_scores even where the strategy has no use for
                              * them: then the next layer's gate is run for the sink alone */
  void *user_data;
  void (*on_call)(void *user_data, const moert_trace_call *call); /* may be NULL */
  void (*on_span)(void *user_data, const moert_trace_span *span); /* may be NULL */
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_trace_sink;

MOERT_API void moert_trace_sink_init(moert_trace_sink *sink, uint64_t size);

MOERT_END_C

#endif /* MOERT_C_TRACE_H_ */
