/* version.h: which library this is, and how its functions are declared. Since 0.1. */
#ifndef MOERT_C_VERSION_H_
#define MOERT_C_VERSION_H_

#include <stddef.h>
#include <stdint.h>

/* The version of this header; moert_version says which library runs. */
#define MOERT_VERSION_MAJOR 0
#define MOERT_VERSION_MINOR 2
#define MOERT_VERSION_PATCH 0

#if defined(__GNUC__)
#define MOERT_API __attribute__((visibility("default")))
#else
#define MOERT_API
#endif

#ifdef __cplusplus
#define MOERT_BEGIN_C extern "C" {
#define MOERT_END_C }
#else
#define MOERT_BEGIN_C
#define MOERT_END_C
#endif

MOERT_BEGIN_C

/* major * 10000 + minor * 100 + patch of the library that runs. Thread-safe. */
MOERT_API int32_t moert_version(void);
/* "0.2.0". Static. Thread-safe. */
MOERT_API const char *moert_version_string(void);

MOERT_END_C

#endif /* MOERT_C_VERSION_H_ */
