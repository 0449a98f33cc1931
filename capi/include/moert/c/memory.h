/* memory.h: what a budget pays for. Since 0.1. */
#ifndef MOERT_C_MEMORY_H_
#define MOERT_C_MEMORY_H_

#include "moert/c/engine.h"

MOERT_BEGIN_C

/* Bytes, unless the name says otherwise. A slot is room for one expert. */
typedef struct moert_memory {
  uint64_t struct_size;
  int64_t budget_bytes;
  int64_t minimum_bytes; /* the smallest legal budget */
  /* Fixed parts. */
  int64_t constant_bytes;  /* gates, shared experts */
  int64_t table_bytes;     /* residency and bookkeeping */
  int64_t workspace_bytes; /* activations */
  /* Pools. */
  int64_t block_bytes;     /* the largest expert, in the best version served */
  int64_t slots;           /* blocks for the rest of the budget, counted at the mean size, all_bytes
                            * over total_experts: a cache's blocks are as large as their records */
  int64_t low_block_bytes; /* one expert in the low version, where two are served */
  int64_t low_slots;
  int64_t spare_slots; /* blocks of each size kept free so that full pools can swap */
  int64_t own_bytes;   /* bytes of the pool in which every expert owns a block for good, as large as
                        * its record; 0: no such pool */
  int64_t total_experts; /* routed experts of all layers */
  int64_t all_bytes;     /* blocks for all of them, in the best version served */
  int64_t policy_bytes;  /* held by policies: a fixed part on the CPU; with a device this is RAM
                          * outside of the budget */
  int64_t pinned_bytes;  /* CUDA: limit of the pinned RAM that keeps records, outside the budget */
} moert_memory;

MOERT_API void moert_memory_init(moert_memory *memory, uint64_t size);
/* The bytes that an engine would take; allocates nothing and needs no device. options NULL: the
 * defaults. Thread-safe. Blocks only to read a profile file. Fails: like moert_engine_create, but
 * not for lack of memory or by reading experts. */
MOERT_API moert_code moert_memory_plan(const moert_source *source,
                                       const moert_engine_options *options, moert_memory *memory,
                                       moert_error **error);
/* The same of a live engine. Thread-safe. Blocks for a layer call's bookkeeping, never for its
 * work. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_engine_memory(const moert_engine *engine, moert_memory *memory,
                                         moert_error **error);

MOERT_END_C

#endif /* MOERT_C_MEMORY_H_ */
