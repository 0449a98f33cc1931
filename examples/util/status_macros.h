// Early returns for absl::Status.
#ifndef MOERT_EXAMPLES_UTIL_STATUS_MACROS_H_
#define MOERT_EXAMPLES_UTIL_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define MOERT_CONCAT_(a, b) a##b
#define MOERT_CONCAT(a, b) MOERT_CONCAT_(a, b)

#define MOERT_RETURN_IF_ERROR(expr)                \
  do {                                             \
    absl::Status moert_status_ = (expr);           \
    if (!moert_status_.ok()) return moert_status_; \
  } while (false)

#define MOERT_ASSIGN_OR_RETURN(lhs, expr) \
  MOERT_ASSIGN_OR_RETURN_(MOERT_CONCAT(moert_statusor_, __LINE__), lhs, expr)
#define MOERT_ASSIGN_OR_RETURN_(tmp, lhs, expr)  \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)

#endif  // MOERT_EXAMPLES_UTIL_STATUS_MACROS_H_
