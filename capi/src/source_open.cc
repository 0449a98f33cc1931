// Sources from files.
#include <string>

#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

void Log(void* user, absl::string_view line) {
  const auto* options = static_cast<const moert_open_options*>(user);
  options->log(options->user_data, std::string(line).c_str());
}

void Progress(void* user, int64_t done, int64_t total) {
  const auto* options = static_cast<const moert_open_options*>(user);
  options->progress(options->user_data, done, total);
}

absl::Status CheckFolder(const char* name, const char* folder) {
  if (folder == nullptr) return NullArgument(name);
  if (*folder != 0) return absl::OkStatus();
  return Illegal(name, " is empty, legal is a folder");
}

absl::StatusOr<OpenMode> ModeOf(moert_open_mode mode) {
  switch (mode) {
    case MOERT_OPEN_PACK_IF_THERE:
      return OpenMode::kPackIfThere;
    case MOERT_OPEN_PACK:
      return OpenMode::kPack;
    case MOERT_OPEN_IN_PLACE:
      return OpenMode::kInPlace;
    default:
      return Illegal("options.mode is ", mode,
                     ", legal is MOERT_OPEN_PACK_IF_THERE, MOERT_OPEN_PACK or MOERT_OPEN_IN_PLACE");
  }
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_source_open(const char* model_dir, const moert_open_options* options,
                             moert_source** source, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_RETURN_IF_ERROR(CheckFolder("model_dir", model_dir));
    MOERT_REQUIRE_NOT_NULL(source);
    moert_open_options checked{};
    if (options != nullptr) MOERT_RETURN_IF_ERROR(ReadStruct(options, "options", &checked));
    moert::OpenModelOptions cpp;
    if (checked.cache_dir != nullptr) cpp.cache_dir = checked.cache_dir;
    MOERT_RETURN_IF_ERROR(CheckFlag("options.widen", checked.widen));
    cpp.widen = checked.widen != 0;
    MOERT_ASSIGN_OR_RETURN(cpp.mode, ModeOf(checked.mode));
    if (checked.log != nullptr) cpp.log = &Log;
    if (checked.progress != nullptr) cpp.progress = &Progress;
    cpp.user = &checked;
    auto handle = std::make_unique<moert_source>();
    MOERT_ASSIGN_OR_RETURN(handle->source, moert::OpenModel(model_dir, cpp));
    *source = handle.release();
    return absl::OkStatus();
  });
}

moert_code moert_source_open_pack(const char* pack_dir, moert_source** source,
                                  moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_RETURN_IF_ERROR(CheckFolder("pack_dir", pack_dir));
    MOERT_REQUIRE_NOT_NULL(source);
    auto handle = std::make_unique<moert_source>();
    MOERT_ASSIGN_OR_RETURN(handle->source, moert::OpenExpertPack(pack_dir));
    *source = handle.release();
    return absl::OkStatus();
  });
}

}  // extern "C"
