// The statistics of an engine, put together from those of its components.
#ifndef MOERT_LIB_ENGINE_STATS_H_
#define MOERT_LIB_ENGINE_STATS_H_

#include "engine/engine_parts.h"
#include "moert/stats.h"

namespace moert {

/// Counted since the parts were made. fixed_bytes: of the budget, what is no pool.
EngineStats CollectStats(const EngineParts& parts, int64_t fixed_bytes);

/// Decisions of policies that were replaced by the default.
int64_t CollectFallbacks(const EngineParts& parts);

}  // namespace moert

#endif  // MOERT_LIB_ENGINE_STATS_H_
