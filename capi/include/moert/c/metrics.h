/* metrics.h: what an engine counted since it was created. A lookup is one distinct (layer, expert)
 * that a layer call needs; it is a hit when the intended version was usable as the layer asked.
 * Since 0.1. */
#ifndef MOERT_C_METRICS_H_
#define MOERT_C_METRICS_H_

#include "moert/c/engine.h"

MOERT_BEGIN_C

/* The counters that every host can use; all others go by name (moert_metrics_visit). Hit ratio:
 * (hits_resident + hits_prefetched) / lookups. */
typedef struct moert_stats {
  uint64_t struct_size;
  /* Memory. */
  int64_t budget_bytes;
  int64_t peak_bytes; /* the most that was held */
  /* Lookups. */
  int64_t lookups;
  int64_t hits_resident;   /* there before */
  int64_t hits_prefetched; /* brought by a prefetch, used for the first time */
  int64_t late;            /* a prefetch was still in flight: no hit */
  /* Movement. */
  int64_t loads; /* completed, without prefetches */
  int64_t prefetches;
  int64_t bytes_loaded; /* of all transfers */
  int64_t evictions;
  int64_t stalled_ns; /* time that layers could not go on, the engine's clock */
  /* Loss and failure. */
  int64_t substituted;      /* token x k slots whose expert was replaced */
  int64_t low_answers;      /* lookups answered in a lower version than intended */
  int64_t policy_fallbacks; /* policy answers that failed or were illegal */
  int64_t cpu_computed;     /* lookups that the CPU computed beside a GPU */
} moert_stats;

MOERT_API void moert_stats_init(moert_stats *stats, uint64_t size);
/* A consistent snapshot of the last finished layer call. Thread-safe. Blocks for a layer call's
 * bookkeeping, never for its work. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_engine_stats(const moert_engine *engine, moert_stats *stats,
                                        moert_error **error);

/* Every metric of one snapshot, in a fixed order: visit(user_data, name, value), on this thread.
 * Names are Prometheus names ("moert_lookups_total"; docs/reference/metrics.md lists them): they
 * are static and keep their meaning, new ones may come. Seconds, bytes and counts, as the name
 * says. visit may call the engine. Thread-safe. Blocks as moert_engine_stats. Fails:
 * INVALID_ARGUMENT. */
MOERT_API moert_code moert_metrics_visit(const moert_engine *engine,
                                         void (*visit)(void *user_data, const char *name,
                                                       double value),
                                         void *user_data, moert_error **error);
/* The same metrics as Prometheus text. label becomes engine="..." (NULL: none). Writes at most
 * buffer_bytes, NUL included, and the bytes needed to *needed (may be NULL); buffer NULL with 0
 * bytes asks for the size only. Thread-safe. Blocks as moert_engine_stats. Fails: INVALID_ARGUMENT;
 * OUT_OF_RANGE when the buffer is too small. */
MOERT_API moert_code moert_metrics_prometheus(const moert_engine *engine, const char *label,
                                              char *buffer, uint64_t buffer_bytes, uint64_t *needed,
                                              moert_error **error);

MOERT_END_C

#endif /* MOERT_C_METRICS_H_ */
