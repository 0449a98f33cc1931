#include <string>
#include <utility>

#include "base/status_macros.h"
#include "callback_source.h"
#include "guard.h"
#include "handles.h"
#include "layer_spec.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_source_callbacks DefaultCallbacks() {
  moert_source_callbacks callbacks{};
  callbacks.weights_dtype = MOERT_BF16;
  return callbacks;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_source_callbacks_init(moert_source_callbacks* callbacks, uint64_t size) {
  InitStruct(callbacks, size, DefaultCallbacks());
}

moert_code moert_source_create(const char* name, const moert_layer_spec* layers,
                               uint64_t num_layers, const moert_source_callbacks* callbacks,
                               moert_source** source, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    moert_source_callbacks checked = DefaultCallbacks();
    MOERT_RETURN_IF_ERROR(ReadStruct(callbacks, "callbacks", &checked));
    MOERT_ASSIGN_OR_RETURN(moert::MoeModelSpec model, ReadLayers(layers, num_layers));
    auto handle = std::make_unique<moert_source>();
    MOERT_ASSIGN_OR_RETURN(handle->source, MakeCallbackSource(name == nullptr ? "host" : name,
                                                              std::move(model), checked));
    *source = handle.release();
    return absl::OkStatus();
  });
}

void moert_source_destroy(moert_source* source) { delete source; }

int32_t moert_source_layer_count(const moert_source* source) {
  return source == nullptr ? 0 : source->source->model().num_layers();
}

moert_code moert_source_layer(const moert_source* source, int32_t layer, moert_layer_spec* spec,
                              moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    return WriteLayer(source->source->model(), layer, spec);
  });
}

const char* moert_source_name(const moert_source* source) {
  return source == nullptr ? "" : source->source->name().c_str();
}

}  // extern "C"
