/* source.h: where experts come from: a checkpoint, an expert pack, or a host's own weights. Sources
 * are reference-counted: an engine keeps its own reference. Since 0.1. */
#ifndef MOERT_C_SOURCE_H_
#define MOERT_C_SOURCE_H_

#include "moert/c/model.h"
#include "moert/c/tensor.h"

MOERT_BEGIN_C

typedef struct moert_source moert_source;

/* ---- Files. */

/* How the experts of a checkpoint are read. */
typedef int32_t moert_open_mode;
enum moert_open_mode_values {
  MOERT_OPEN_MODE_INVALID = -1,
  /* From a pack in the cache folder if it exists, else in place: nothing is written. */
  MOERT_OPEN_PACK_IF_THERE = 0,
  /* From a pack in the cache folder, which the first open writes and which is as large as the
   * experts. Records are read in one piece and checked. `log` receives its size before. */
  MOERT_OPEN_PACK = 1,
  /* From the checkpoint itself. */
  MOERT_OPEN_IN_PLACE = 2
};

/* Both callbacks may be NULL; they run on the thread that opens. */
typedef struct moert_open_options {
  uint64_t struct_size;
  const char *cache_dir; /* NULL: $XDG_CACHE_HOME/moert or ~/.cache/moert */
  void *user_data;
  void (*log)(void *user_data, const char *line);
  void (*progress)(void *user_data, int64_t done_bytes, int64_t total_bytes);
  int32_t widen; /* 1: experts that are quantized in the checkpoint become bf16 */
  moert_open_mode mode;
} moert_open_options;

MOERT_API void moert_open_options_init(moert_open_options *options, uint64_t size);

/* Opens a checkpoint directory as published on Hugging Face (config.json and safetensors shards).
 * Experts keep the scheme of the checkpoint; floating-point ones become bf16. options NULL: the
 * defaults, which write nothing. Thread-safe. Blocks while it reads and writes files. Fails:
 * NOT_FOUND, PERMISSION_DENIED; INVALID_ARGUMENT or DATA_LOSS for a damaged file; UNIMPLEMENTED for
 * an unknown architecture; RESOURCE_EXHAUSTED when the disk is full. */
MOERT_API moert_code moert_source_open(const char *model_dir, const moert_open_options *options,
                                       moert_source **source, moert_error **error);
/* An expert pack directory, as moert-pack writes them. Thread-safe. Blocks while it reads the
 * manifest. Fails: NOT_FOUND; INVALID_ARGUMENT or DATA_LOSS for a damaged file. */
MOERT_API moert_code moert_source_open_pack(const char *pack_dir, moert_source **source,
                                            moert_error **error);

/* ---- A host's own weights. */

/* The kinds of weights that a host's source is asked for. */
typedef int32_t moert_part;
enum moert_part_values {
  MOERT_PART_INVALID = -1,
  MOERT_PART_GATE_PROJ = 0,      /* of an expert: [intermediate, hidden], in weights_dtype */
  MOERT_PART_UP_PROJ = 1,        /* of an expert: [intermediate, hidden], in weights_dtype */
  MOERT_PART_DOWN_PROJ = 2,      /* of an expert: [hidden, intermediate], in weights_dtype */
  MOERT_PART_ROUTER = 3,         /* of a layer: [num_experts, hidden], f32 */
  MOERT_PART_SELECTION_BIAS = 4, /* of a layer: [1, num_experts], f32 */
  MOERT_PART_SHARED_GATE = 5,    /* of a layer: [1, hidden], f32 */
  MOERT_PART_RECORD = 6, /* of an expert: [1, bytes], a packed record (docs/reference/layout.md) */
  MOERT_PART_LOGIT_BIAS = 7,    /* of a layer: [1, num_experts], f32 */
  MOERT_PART_EXPERT_SCALES = 8, /* of a layer: [1, num_experts], f32 */
  MOERT_PART_HASH_EXPERTS = 9,  /* of a layer: [hash_vocab, top_k], i32: distinct experts */
  MOERT_PART_GATE_BIAS = 10,    /* of an expert: [1, intermediate], f32 */
  MOERT_PART_UP_BIAS = 11,      /* of an expert: [1, intermediate], f32 */
  MOERT_PART_DOWN_BIAS = 12     /* of an expert: [1, hidden], f32 */
};

/* Limit of the parts of an opaque record. */
enum moert_part_limits { MOERT_MAX_PARTS = 8 };

/* The value of moert_read.expert for parts of the shared expert. */
enum moert_expert_values { MOERT_SHARED_EXPERT = -1 };

/* A request for rows [first_row, first_row + dst.rows) of a row-major matrix. */
typedef struct moert_read {
  uint64_t struct_size;
  int32_t layer;
  int32_t expert; /* MOERT_SHARED_EXPERT, or an expert; 0 for parts of a layer */
  moert_part part;
  int32_t version;   /* of MOERT_PART_RECORD: index into `schemes`; else 0 */
  int64_t first_row; /* a multiple of 16 */
  moert_tensor dst;  /* to be filled: contiguous, in host memory */
} moert_read;

typedef struct moert_source_callbacks {
  uint64_t struct_size;
  moert_dtype weights_dtype; /* of the three projections: f32, bf16 (the default) or f16 */
  /* NULL: experts are read by rows and kept as bf16. Else the schemes of the host's packed records,
   * most bits first, comma separated ("bf16,w4a16_g128"): `read` is asked for MOERT_PART_RECORD. */
  const char *schemes;
  void *user_data;
  /* Called from several threads of the library at once, and with the virtual clock from the thread
   * of the layer call. Returns MOERT_OK, or the code that the layer call which needed the weights
   * returns. */
  moert_code (*read)(void *user_data, const moert_read *read, moert_failure *failure);
  /* Returns the address of a packed record that lies in page-locked host memory already, at a
   * multiple of 4096 bytes: the CUDA backend copies it to the device from there and keeps no copy.
   * NULL: the record has to be read. Called like `read`. The member may be NULL. */
  const void *(*pinned_record)(void *user_data, int32_t layer, int32_t expert, int32_t version);
  /* Once, when the last user of the source is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_source_callbacks;

MOERT_API void moert_source_callbacks_init(moert_source_callbacks *callbacks, uint64_t size);

/* Makes a source over a host's own weights. layers: [num_layers]; name is for messages. Reads
 * nothing. On success user_data belongs to the source, until destroy is called; on failure it stays
 * the host's. Thread-safe. Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_source_create(const char *name, const moert_layer_spec *layers,
                                         uint64_t num_layers,
                                         const moert_source_callbacks *callbacks,
                                         moert_source **source, moert_error **error);

/* ---- Any source. */

/* Accepts NULL. Not thread-safe. */
MOERT_API void moert_source_destroy(moert_source *source);
/* For messages: the directory, or the host's name. Lives as long as the source. Thread-safe. */
MOERT_API const char *moert_source_name(const moert_source *source);
/* MoE layers; 0 for NULL. Thread-safe. */
MOERT_API int32_t moert_source_layer_count(const moert_source *source);
/* Thread-safe. Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_source_layer(const moert_source *source, int32_t layer,
                                        moert_layer_spec *spec, moert_error **error);
/* Versions that every expert is stored in, most bits first; 0 for NULL. Thread-safe. */
MOERT_API int32_t moert_source_version_count(const moert_source *source);

/* One stored version of an expert: one contiguous record. */
typedef struct moert_record_info {
  uint64_t struct_size;
  const char *version; /* its scheme, or its plan's name if mixed. Static */
  int64_t bytes;
  int32_t hadamard; /* 1: weights are stored in the block Hadamard domain */
  moert_matrix gate; /* equals up if the layer is ungated */
  moert_matrix up;
  moert_matrix down;
  /* Where the f32 biases of each matrix lie in the record, [padded_rows]; 0: there are none. */
  int64_t gate_bias_offset;
  int64_t up_bias_offset;
  int64_t down_bias_offset;
} moert_record_info;

MOERT_API void moert_record_info_init(moert_record_info *info, uint64_t size);
/* Thread-safe. Never blocks. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_source_record(const moert_source *source, int32_t layer, int32_t expert,
                                         int32_t version, moert_record_info *info,
                                         moert_error **error);
/* Reads one record into dst (at least moert_record_info.bytes long, checked). Thread-safe.
 * Blocks while it reads. Fails: INVALID_ARGUMENT, DATA_LOSS for a wrong checksum, or the code of
 * the host's `read`. */
MOERT_API moert_code moert_source_read(const moert_source *source, int32_t layer, int32_t expert,
                                       int32_t version, void *dst, uint64_t dst_bytes,
                                       moert_error **error);

MOERT_END_C

#endif /* MOERT_C_SOURCE_H_ */
