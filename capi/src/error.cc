#include <algorithm>

#include "guard.h"

namespace moert::capi {
namespace {

// Given out when there is no memory for another; never freed.
moert_error* OutOfMemory() {
  static moert_error error{MOERT_RESOURCE_EXHAUSTED, "out of memory", "moert"};
  return &error;
}
// Built before main, so that it needs no memory when there is none.
[[maybe_unused]] const moert_error* const kBuilt = OutOfMemory();

}  // namespace

moert_code ReportOutOfMemory(moert_error** error) noexcept {
  if (error != nullptr) *error = OutOfMemory();
  return MOERT_RESOURCE_EXHAUSTED;
}

moert_code Report(const absl::Status& status, const char* origin, moert_error** error) noexcept {
  const moert_code code = -static_cast<moert_code>(status.code());
  if (error == nullptr) return code;
  *error = nullptr;
  if (status.ok()) return code;
  try {
    *error = new moert_error{code, std::string(status.message()), origin};
  } catch (...) {
    *error = OutOfMemory();
  }
  return code;
}

absl::Status FromCallback(moert_code code, const moert_failure& failure, absl::string_view what) {
  if (code == MOERT_OK) return absl::OkStatus();
  if (code > 0 || code < MOERT_UNAUTHENTICATED) {
    return absl::InternalError(
        absl::StrCat(what, ": the callback returned ", code, ", which is no moert_code"));
  }
  return absl::Status(static_cast<absl::StatusCode>(-code),
                      absl::StrCat(what, ": ",
                                   failure.message.empty() ? "the callback failed without a reason"
                                                           : failure.message));
}

}  // namespace moert::capi

using moert::capi::OutOfMemory;

extern "C" {

moert_code moert_error_code(const moert_error* error) {
  return error == nullptr ? MOERT_OK : error->code;
}

const char* moert_error_message(const moert_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}

const char* moert_error_origin(const moert_error* error) {
  return error == nullptr ? "" : error->origin;
}

void moert_error_destroy(moert_error* error) {
  if (error != OutOfMemory()) delete error;
}

void moert_failure_set(moert_failure* failure, const char* message) {
  if (failure == nullptr || message == nullptr) return;
  try {
    failure->message = message;
  } catch (...) {
    failure->message.clear();
  }
}

}  // extern "C"
