
#include "guard.h"

namespace moert::capi {
namespace {

// Returned when there is no memory for another error, one per code; never freed.
constexpr int kCodes = 1 - MOERT_UNAUTHENTICATED;
struct FixedErrors {
  moert_error of[kCodes];
  FixedErrors() {
    for (int i = 0; i < kCodes; ++i) of[i] = {-i, "out of memory", "moert"};
  }
};
FixedErrors& Fixed() {
  static FixedErrors errors;
  return errors;
}
// Built before main, so that they need no memory when none is left.
[[maybe_unused]] const FixedErrors& kBuilt = Fixed();

moert_error* OutOfMemory(moert_code code) { return &Fixed().of[-code]; }
bool IsFixed(const moert_error* error) {
  return error >= Fixed().of && error < Fixed().of + kCodes;
}

}  // namespace

moert_code ReportOutOfMemory(moert_error** error) noexcept {
  if (error != nullptr) *error = OutOfMemory(MOERT_RESOURCE_EXHAUSTED);
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
    *error = OutOfMemory(code);
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

using moert::capi::IsFixed;

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
  if (!IsFixed(error)) delete error;
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
