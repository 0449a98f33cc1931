/* services.h: services that a host may give to an engine: threads, memory, a log. All callbacks of
 * this header must return normally; only the log's may call the engine. Since 0.1. */
#ifndef MOERT_C_SERVICES_H_
#define MOERT_C_SERVICES_H_

#include "moert/c/error.h"

MOERT_BEGIN_C

/* One of the jobs of moert_thread_pool.run. */
typedef void (*moert_job)(void *job_data, int64_t index, int32_t worker);

/* The threads that execute CPU kernels. */
typedef struct moert_thread_pool {
  uint64_t struct_size;
  int32_t num_threads; /* 1 to 1024 */
  void *user_data;
  /* Calls job(job_data, i, worker) once for every i in [0, num_jobs), on any threads, and returns
   * when all are done. No two jobs that run at the same time have the same worker, which is in
   * [0, num_threads). Calls come from one thread at a time. */
  void (*run)(void *user_data, int64_t num_jobs, moert_job job, void *job_data);
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_thread_pool;

MOERT_API void moert_thread_pool_init(moert_thread_pool *pool, uint64_t size);

/* Memory of the expert pools in RAM: huge pages, NUMA nodes, accounting. Calls come from one thread
 * at a time, while the engine is locked. */
typedef struct moert_allocator {
  uint64_t struct_size;
  void *user_data;
  /* `bytes` at a multiple of `alignment`; NULL when there is none: the engine makes do with fewer
   * experts. */
  void *(*allocate)(void *user_data, uint64_t bytes, uint64_t alignment);
  void (*deallocate)(void *user_data, void *memory, uint64_t bytes);
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_allocator;

MOERT_API void moert_allocator_init(moert_allocator *allocator, uint64_t size);

typedef int32_t moert_log_level;
enum moert_log_level_values {
  MOERT_LOG_INVALID = -1,
  MOERT_LOG_INFO = 0,
  MOERT_LOG_WARNING = 1,
  MOERT_LOG_ERROR = 2
};

/* Receives log lines for the operator of the host. Called from the thread that caused the line,
 * with no lock held; may call the engine. */
typedef struct moert_logger {
  uint64_t struct_size;
  void *user_data;
  void (*log)(void *user_data, moert_log_level level, const char *line);
  /* Once, when the engine is gone; may be NULL. */
  void (*destroy)(void *user_data);
} moert_logger;

MOERT_API void moert_logger_init(moert_logger *logger, uint64_t size);

MOERT_END_C

#endif /* MOERT_C_SERVICES_H_ */
