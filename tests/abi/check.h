/* Checks for programs that are both C99 and C++. */
#ifndef MOERT_TESTS_ABI_CHECK_H_
#define MOERT_TESTS_ABI_CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moert.h"

static int check_failures = 0;

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);     \
      ++check_failures;                                                           \
    }                                                                             \
  } while (0)

/* A call that succeeds; shows its error if it does not. */
#define CHECK_OK(call)                                                            \
  do {                                                                            \
    moert_error *error = (moert_error *)&check_failures; /* must be overwritten */ \
    moert_code code = (call);                                                     \
    if (code != MOERT_OK) {                                                       \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,           \
              moert_code_name(code), moert_error_message(error));                 \
      moert_error_destroy(error);                                                 \
      ++check_failures;                                                           \
    } else {                                                                      \
      CHECK(error == NULL);                                                       \
    }                                                                             \
  } while (0)

/* A call that fails with `expected`, whose message has `text` and whose origin is `function`. */
#define CHECK_FAILS(call, expected, text, function)                               \
  do {                                                                            \
    moert_error *error = NULL;                                                    \
    moert_code code = (call);                                                     \
    CHECK(code == (expected));                                                    \
    CHECK(moert_error_code(error) == code);                                       \
    if (strstr(moert_error_message(error), text) == NULL) {                       \
      fprintf(stderr, "%s:%d: message '%s' has no '%s'\n", __FILE__, __LINE__,    \
              moert_error_message(error), text);                                  \
      ++check_failures;                                                           \
    }                                                                             \
    CHECK(strcmp(moert_error_origin(error), function) == 0);                      \
    moert_error_destroy(error);                                                   \
  } while (0)

/* A layer call of contiguous fp32 rows in host memory. */
static inline moert_code forward(moert_step *step, int32_t layer, float *x, int64_t cols,
                                 int64_t rows, float *y, moert_error **error) {
  moert_tensor in, out;
  moert_tensor_init(&in, x, rows, cols, MOERT_F32);
  moert_tensor_init(&out, y, rows, cols, MOERT_F32);
  return moert_layer_forward(step, layer, &in, NULL, &out, error);
}

typedef struct metric_query {
  const char *name;
  double value;
  int visited;
} metric_query;

static inline void find_metric(void *user_data, const char *name, double value) {
  metric_query *query = (metric_query *)user_data;
  ++query->visited;
  CHECK(strncmp(name, "moert_", 6) == 0);
  if (strcmp(name, query->name) == 0) query->value = value;
}

/* -1: there is none of that name. */
static inline double metric(const moert_engine *engine, const char *name) {
  metric_query query = {NULL, -1, 0};
  query.name = name;
  CHECK_OK(moert_metrics_visit(engine, find_metric, &query, &error));
  CHECK(query.visited > 40);
  return query.value;
}

#endif /* MOERT_TESTS_ABI_CHECK_H_ */
