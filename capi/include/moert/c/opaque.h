/* opaque.h: a source of records in the host's own format: bytes that the host's kernels read and
 * the library stores, moves, prefetches and counts (slots.h gives their addresses). Since 0.1. */
#ifndef MOERT_C_OPAQUE_H_
#define MOERT_C_OPAQUE_H_

#include "moert/c/source.h"

MOERT_BEGIN_C

/* One part of every expert of a layer: the slices of a GGUF's expert tensor, say. It lies in
 * memory, in a file, or both; where neither is set, `read` of moert_opaque_options brings it. */
typedef struct moert_opaque_part {
  uint64_t struct_size;
  int64_t bytes;           /* of one expert's part */
  int64_t alignment;       /* of its address in a slot: a power of two up to 4096; default 1 */
  int64_t stride_multiple; /* slots are a multiple of so many bytes apart, up to 4096; default 1.
                            * The common multiple of a layer's parts and 4096 is at most 2^40 */
  const void* memory;      /* expert e's bytes begin at memory + offset + e * stride. Borrowed until
                            * `destroy`; a mapped file will do. With `file`: that file's mapping
                            * from its first byte on; transfers read the file. `product` reads
                            * memory in place if it has the alignment, and may take page faults */
  int64_t offset;          /* of expert 0, in memory or in the file, bytes */
  int64_t stride;          /* from expert to expert, bytes, at least `bytes`; 0: `bytes` */
  int32_t layer;
  int32_t file;  /* index into files; -1: none, the default */
  int64_t zeros; /* zero bytes after the part in a slot, for kernels that read past its end */
} moert_opaque_part;

MOERT_API void moert_opaque_part_init(moert_opaque_part* part, uint64_t size);

/* An expert of a job for the CPU: the number of its pairs, at least 1, and the addresses of its
 * record's parts, in RAM or in moert_opaque_part.memory; NULL after the layer's last part. */
typedef struct moert_cpu_expert {
  const void* part[MOERT_MAX_PARTS];
  int64_t pairs;
  int64_t expert;
} moert_cpu_expert;

/* The CPU's part of a layer call while the device computes the rest. A pair is a token and one of
 * its experts; pairs are grouped by expert. Everything is valid for the call. */
typedef struct moert_cpu_job {
  uint64_t struct_size;
  int64_t layer;
  int64_t hidden;
  int64_t rows;
  const float* x; /* [rows, hidden] */
  int64_t num_experts;
  const moert_cpu_expert* experts; /* [num_experts] */
  int64_t pairs;                   /* of all experts */
  const int32_t* row_of;           /* [pairs] the row of x that a pair multiplies */
  const float* weights; /* [pairs] moert_fetch.weights of each; ones where none were given */
  float* out;           /* [pairs, hidden], all to be written */
  /* Runs task(arg, i, thread) for i in [0, count) on the library's threads, the caller's among
   * them, and returns when all are done. thread is in [0, threads): no two tasks that run at the
   * same time see the same value. A task must not call run. */
  void (*run)(void* pool, int64_t count, void (*task)(void* arg, int64_t i, int32_t thread),
              void* arg);
  void* pool;
  int64_t threads;
} moert_cpu_job;

/* A host's product over its own records on the CPU. A row of `out` must be what the host's device
 * kernels have produced for that pair when moert_cpu_rows_take is called; whether it is weighted is
 * the host's choice. Called by a thread of the library, one call per engine at a time, while the
 * device waits: it must not wait for the device and must not call the engine. Returns MOERT_OK, or
 * the code that a later call of the step returns. Must not throw. */
typedef moert_code (*moert_cpu_product)(void* user_data, const moert_cpu_job* job,
                                        moert_failure* failure);

/* Everything may be NULL or 0. */
typedef struct moert_opaque_options {
  uint64_t struct_size;
  const char* format;       /* a short name of the format, for reports */
  const char* const* files; /* [num_files] paths */
  int64_t num_files;
  void* user_data;
  /* Reads one part of one expert into dst. Called from several threads of the library at once, and
   * with the virtual clock from the thread of the layer call. Returns MOERT_OK, or the code that
   * the call which needed the expert returns. */
  moert_code (*read)(void* user_data, int32_t layer, int32_t expert, int32_t part, void* dst,
                     int64_t bytes, moert_failure* failure);
  /* Reads MOERT_PART_ROUTER, MOERT_PART_SELECTION_BIAS and MOERT_PART_LOGIT_BIAS of layers whose
   * routing is not MOERT_ROUTING_EXTERNAL. Called while an engine is made. */
  moert_code (*gates)(void* user_data, const moert_read* read, moert_failure* failure);
  /* Called once, when the last user of the source is gone. */
  void (*destroy)(void* user_data);
  /* For strategies that share misses with the CPU, on calls with moert_fetch.cpu_rows. */
  moert_cpu_product product;
} moert_opaque_options;

MOERT_API void moert_opaque_options_init(moert_opaque_options* options, uint64_t size);

/* layers: [num_layers], without shared experts; parts: [num_parts] of all layers, those of a layer
 * in their order, 1 to MOERT_MAX_PARTS a layer. Files are opened. On success user_data and memory
 * belong to the source, until destroy is called; on failure they stay the host's. Thread-safe.
 * Blocks while it opens files. Fails: INVALID_ARGUMENT names layer, part and field; NOT_FOUND,
 * PERMISSION_DENIED. */
MOERT_API moert_code moert_source_create_opaque(const char* name, const moert_layer_spec* layers,
                                                uint64_t num_layers, const moert_opaque_part* parts,
                                                uint64_t num_parts,
                                                const moert_opaque_options* options,
                                                moert_source** source, moert_error** error);

MOERT_END_C

#endif /* MOERT_C_OPAQUE_H_ */
