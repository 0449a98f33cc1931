#include <unistd.h>

#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "layer_spec.h"
#include "options.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

TraceHeader TraceHeaderOf(const ExpertSource& source, const EngineOptions& options) {
  TraceHeader header = MakeTraceHeader(source, options.max_tokens_per_forward);
  header.strategy = options.strategy;
  header.clock = options.clock == ClockKind::kVirtual ? "virtual" : "wall";
  return header;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_engine_create(const moert_source* source, const moert_engine_options* options,
                               moert_engine** engine, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_ASSIGN_OR_RETURN(ParsedOptions parsed, ReadOptions(options));
    auto handle = std::make_unique<moert_engine>();
    handle->state = EngineState::Make();
    EngineState& state = *handle->state;
    absl::Cleanup forget_files = [&] {
      // Removes the files made for an engine whose creation failed, so that a second try does not
      // find them.
      if (state.trace == nullptr || parsed.trace.existing == moert::Existing::kReplace) return;
      for (const std::string* path : {&parsed.trace.routing, &parsed.trace.timeline}) {
        if (!path->empty()) ::unlink(path->c_str());
      }
    };
    if (!parsed.trace.routing.empty() || !parsed.trace.timeline.empty()) {
      MOERT_ASSIGN_OR_RETURN(
          std::unique_ptr<moert::TraceFile> file,
          moert::CreateTraceFiles(parsed.trace, TraceHeaderOf(*source->source, parsed.options)));
      state.trace = std::make_shared<ClosableTrace>(std::move(file), parsed.options.trace);
      parsed.options.trace = state.trace;
    }
    if (parsed.policies != nullptr) state.policies.push_back(parsed.policies);
    const PoliciesOfStrategies collect(&state.policies);
    state.simulates = parsed.options.simulate;
    MOERT_ASSIGN_OR_RETURN(state.engine, moert::Engine::Create(source->source, parsed.options));
    parsed.Arm();
    std::move(forget_files).Cancel();
    *engine = handle.release();
    return absl::OkStatus();
  });
}

void moert_engine_destroy(moert_engine* engine) { delete engine; }

moert_code moert_engine_set_budget(moert_engine* engine, int64_t bytes, double fraction,
                                   moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return engine->state->engine->SetBudget(ToBudget(bytes, fraction));
  });
}

int32_t moert_engine_layer_count(const moert_engine* engine) {
  return engine == nullptr ? 0 : engine->state->engine->model().num_layers();
}

moert_code moert_engine_layer(const moert_engine* engine, int32_t layer, moert_layer_spec* spec,
                              moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return WriteLayer(engine->state->engine->model(), layer, spec);
  });
}

int64_t moert_engine_now_ns(const moert_engine* engine) {
  return engine == nullptr ? 0 : engine->state->engine->now_ns();
}

moert_backend moert_engine_backend(const moert_engine* engine) {
  if (engine == nullptr) return MOERT_BACKEND_INVALID;
  return static_cast<moert_backend>(engine->state->engine->backend());
}

moert_code moert_engine_close_trace(moert_engine* engine, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    if (engine->state->trace == nullptr) {
      return absl::FailedPreconditionError(
          "the engine was created without options.trace_path and timeline_path");
    }
    return engine->state->trace->Close();
  });
}

const char* moert_engine_promise(const moert_engine* engine) {
  return engine == nullptr ? "" : PromiseName(engine->state->engine->promise()).data();
}

int32_t moert_engine_exact(const moert_engine* engine) {
  return engine != nullptr && engine->state->engine->exact();
}

int32_t moert_engine_graph_safe(const moert_engine* engine) {
  if (engine == nullptr) return 0;
  const moert::GraphNeeds& needs = engine->state->engine->graph_needs();
  return needs.capturable && needs.max_rows == 0;
}

void moert_graph_needs_init(moert_graph_needs* needs, uint64_t size) {
  moert_graph_needs defaults{};
  defaults.obstacle = "";
  InitStruct(needs, size, defaults);
}

moert_code moert_engine_graph_needs(const moert_engine* engine, moert_graph_needs* needs,
                                    moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    const moert::GraphNeeds& from = engine->state->engine->graph_needs();
    moert_graph_needs to{};
    const bool told = needs != nullptr && needs->struct_size >= sizeof *needs;
    to.capturable = from.capturable && (from.max_rows == 0 || told);
    to.max_rows = from.max_rows;
    to.eager_every = from.eager_every;
    to.obstacle = from.obstacle.c_str();
    if (from.capturable && to.capturable == 0) {
      to.obstacle =
          "captured calls have few rows at most, and this moert_graph_needs has no max_rows";
    }
    return WriteStruct(to, needs, "needs");
  });
}

const char* moert_engine_strategy(const moert_engine* engine) {
  return engine == nullptr ? "" : engine->state->engine->strategy().c_str();
}

}  // extern "C"
