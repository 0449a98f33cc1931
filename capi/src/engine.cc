#include <utility>

#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "layer_spec.h"
#include "options.h"

using namespace moert::capi;

extern "C" {

moert_code moert_engine_create(const moert_source* source, const moert_engine_options* options,
                               moert_engine** engine, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_ASSIGN_OR_RETURN(const moert::EngineOptions parsed, ReadOptions(options));
    auto handle = std::make_unique<moert_engine>();
    MOERT_ASSIGN_OR_RETURN(handle->engine, moert::Engine::Create(source->source, parsed));
    *engine = handle.release();
    return absl::OkStatus();
  });
}

void moert_engine_destroy(moert_engine* engine) { delete engine; }

moert_code moert_engine_set_budget(moert_engine* engine, int64_t bytes, double fraction,
                                   moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return engine->engine->SetBudget(ToBudget(bytes, fraction));
  });
}

int32_t moert_engine_layer_count(const moert_engine* engine) {
  return engine == nullptr ? 0 : engine->engine->model().num_layers();
}

moert_code moert_engine_layer(const moert_engine* engine, int32_t layer, moert_layer_spec* spec,
                              moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return WriteLayer(engine->engine->model(), layer, spec);
  });
}

int64_t moert_engine_now_ns(const moert_engine* engine) {
  return engine == nullptr ? 0 : engine->engine->now_ns();
}

int32_t moert_engine_exact(const moert_engine* engine) {
  return engine != nullptr && engine->engine->exact();
}

const char* moert_engine_strategy(const moert_engine* engine) {
  return engine == nullptr ? "" : engine->engine->strategy().c_str();
}

}  // extern "C"
