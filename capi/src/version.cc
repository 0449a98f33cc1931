#include "moert.h"

#define MOERT_TEXT2(x) #x
#define MOERT_TEXT(x) MOERT_TEXT2(x)

extern "C" {

int32_t moert_version(void) {
  return MOERT_VERSION_MAJOR * 10000 + MOERT_VERSION_MINOR * 100 + MOERT_VERSION_PATCH;
}

const char* moert_version_string(void) {
  return MOERT_TEXT(MOERT_VERSION_MAJOR) "." MOERT_TEXT(MOERT_VERSION_MINOR) "." MOERT_TEXT(
      MOERT_VERSION_PATCH);
}

const char* moert_code_name(moert_code code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  if (code > 0 || code < MOERT_UNAUTHENTICATED) return "UNKNOWN";
  return kNames[-code];
}

}  // extern "C"
