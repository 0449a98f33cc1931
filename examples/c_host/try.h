/* The error handling of the C examples. */
#ifndef MOERT_EXAMPLES_C_HOST_TRY_H_
#define MOERT_EXAMPLES_C_HOST_TRY_H_

#include <stdio.h>

#include "moert.h"

/* In a function that returns int and has `moert_error *error`. */
#define TRY(call)                                                                         \
  do {                                                                                    \
    if ((call) != MOERT_OK) {                                                             \
      fprintf(stderr, "%s: %s\n", moert_error_origin(error), moert_error_message(error)); \
      return 1;                                                                           \
    }                                                                                     \
  } while (0)

#endif /* MOERT_EXAMPLES_C_HOST_TRY_H_ */
