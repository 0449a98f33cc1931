/* probe.h: this machine and this build. Since 0.1. */
#ifndef MOERT_C_PROBE_H_
#define MOERT_C_PROBE_H_

#include "moert/c/error.h"

MOERT_BEGIN_C

typedef struct moert_probe_info {
  uint64_t struct_size;
  int32_t cpus;                   /* CPUs this process may run on */
  int32_t cuda_usable;            /* 1: built with CUDA, and driver and device are there */
  int64_t memory_bytes;           /* RAM of the machine */
  int64_t memory_available_bytes; /* RAM that can be had without swapping and within the limits of
                                     control groups and `ulimit -v`. 0: unknown */
  const char *kernels;     /* CPU kernel sets that run here, best first, comma separated. Static */
  const char *schemes;     /* of this build, most bits first, comma separated. Static */
  const char *cuda_status; /* "OK", or why CUDA is not usable. Static */
} moert_probe_info;

MOERT_API void moert_probe_info_init(moert_probe_info *info, uint64_t size);
/* Describes the machine, without measuring. Thread-safe. Blocks while the first call loads the
 * driver. Fails: INVALID_ARGUMENT. */
MOERT_API moert_code moert_probe(moert_probe_info *info, moert_error **error);

MOERT_END_C

#endif /* MOERT_C_PROBE_H_ */
