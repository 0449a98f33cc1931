/* error.h: what went wrong. Since 0.1. */
#ifndef MOERT_C_ERROR_H_
#define MOERT_C_ERROR_H_

#include "moert/c/version.h"

MOERT_BEGIN_C

/* Abseil's status codes, negated. */
typedef int32_t moert_code;
enum moert_code_values {
  MOERT_OK = 0,
  MOERT_CANCELLED = -1,
  MOERT_UNKNOWN = -2,
  MOERT_INVALID_ARGUMENT = -3,
  MOERT_DEADLINE_EXCEEDED = -4,
  MOERT_NOT_FOUND = -5,
  MOERT_ALREADY_EXISTS = -6,
  MOERT_PERMISSION_DENIED = -7,
  MOERT_RESOURCE_EXHAUSTED = -8,
  MOERT_FAILED_PRECONDITION = -9,
  MOERT_ABORTED = -10,
  MOERT_OUT_OF_RANGE = -11,
  MOERT_UNIMPLEMENTED = -12,
  MOERT_INTERNAL = -13,
  MOERT_UNAVAILABLE = -14,
  MOERT_DATA_LOSS = -15,
  MOERT_UNAUTHENTICATED = -16
};

/* Made by a failed call for its caller alone. */
typedef struct moert_error moert_error;

/* "INVALID_ARGUMENT", or "UNKNOWN" for a number that is no code. Static. Thread-safe. */
MOERT_API const char *moert_code_name(moert_code code);

/* The getters may be called concurrently on one error. Strings live as long as the error. NULL has
 * the code MOERT_OK and empty strings. */
MOERT_API moert_code moert_error_code(const moert_error *error);
/* Names the field, its value, what is legal and the way forward. For people; may change. May be
 * called concurrently too. */
MOERT_API const char *moert_error_message(const moert_error *error);
/* The function that failed: "moert_engine_create". May be called concurrently too. */
MOERT_API const char *moert_error_origin(const moert_error *error);
/* Accepts NULL. Not thread-safe. */
MOERT_API void moert_error_destroy(moert_error *error);

/* Where a callback says why it failed; valid during the callback. */
typedef struct moert_failure moert_failure;
/* Inside a callback that is about to return a code other than MOERT_OK: the reason, copied. Not
 * thread-safe. */
MOERT_API void moert_failure_set(moert_failure *failure, const char *message);

MOERT_END_C

#endif /* MOERT_C_ERROR_H_ */
