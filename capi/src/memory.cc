#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "moert.h"
#include "moert/engine.h"
#include "options.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

moert_memory MemoryOf(const MemoryPlan& plan) {
  moert_memory memory{};
  memory.budget_bytes = plan.budget_bytes;
  memory.constant_bytes = plan.constant_bytes;
  memory.table_bytes = plan.table_bytes;
  memory.workspace_bytes = plan.workspace_bytes;
  memory.block_bytes = plan.block_bytes;
  memory.slots = plan.slots;
  memory.low_block_bytes = plan.low_block_bytes;
  memory.low_slots = plan.low_slots;
  memory.spare_slots = plan.spare;
  memory.own_bytes = plan.own_bytes;
  memory.total_experts = plan.total_experts;
  memory.all_bytes = plan.all_bytes;
  memory.minimum_bytes = plan.minimum_bytes;
  memory.policy_bytes = plan.policy_bytes;
  memory.pinned_bytes = plan.pinned_bytes;
  return memory;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

moert_code moert_memory_plan(const moert_source* source, const moert_engine_options* options,
                             moert_memory* memory, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(source);
    MOERT_ASSIGN_OR_RETURN(const ParsedOptions parsed, ReadOptions(options));
    MOERT_ASSIGN_OR_RETURN(const moert::MemoryPlan plan,
                           moert::Engine::Plan(*source->source, parsed.options));
    return WriteStruct(MemoryOf(plan), memory, "memory");
  });
}

moert_code moert_engine_memory(const moert_engine* engine, moert_memory* memory,
                               moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    return WriteStruct(MemoryOf(engine->state->engine->memory()), memory, "memory");
  });
}

}  // extern "C"
