#include <algorithm>

#include "base/status_macros.h"
#include "guard.h"
#include "handles.h"
#include "moert/expert_store.h"

using namespace moert::capi;

static_assert(static_cast<int>(moert::Residency::kAbsent) == MOERT_ABSENT);
static_assert(static_cast<int>(moert::Residency::kArriving) == MOERT_ARRIVING);
static_assert(static_cast<int>(moert::Residency::kLow) == MOERT_RESIDENT_LOW);
static_assert(static_cast<int>(moert::Residency::kHigh) == MOERT_RESIDENT_HIGH);

extern "C" {

moert_code moert_engine_prefetch(moert_engine* engine, int32_t layer, const int32_t* experts,
                                 int64_t count, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_REQUIRE_NOT_NULL(experts);
    if (count < 0 || count > INT32_MAX) return Illegal("count is ", count, ", legal is 0 or more");
    return engine->state->engine->PrefetchHint(layer, absl::MakeConstSpan(experts, count));
  });
}

moert_code moert_engine_residency(const moert_engine* engine, int32_t layer, uint8_t* states,
                                  int64_t count, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    MOERT_REQUIRE_NOT_NULL(engine);
    MOERT_REQUIRE_NOT_NULL(states);
    MOERT_ASSIGN_OR_RETURN(const std::vector<moert::Residency> all,
                           engine->state->engine->ResidencyOf(layer));
    if (count != static_cast<int64_t>(all.size())) {
      return Illegal("count is ", count, ", layer ", layer, " has ", all.size(), " experts");
    }
    std::transform(all.begin(), all.end(), states,
                   [](moert::Residency r) { return static_cast<uint8_t>(r); });
    return absl::OkStatus();
  });
}

}  // extern "C"
