// What the opaque handles are.
#ifndef MOERT_CAPI_SRC_HANDLES_H_
#define MOERT_CAPI_SRC_HANDLES_H_

#include <memory>

#include "moert.h"
#include "moert/engine.h"
#include "moert/expert_source.h"

struct moert_source {
  std::shared_ptr<const moert::ExpertSource> source;
};

struct moert_engine {
  std::shared_ptr<moert::Engine> engine;
};

/// Holds the engine, so that a host whose objects die in any order (garbage collectors) is safe.
struct moert_step {
  std::shared_ptr<moert::Engine> engine;
  moert::StepId id = 0;
};

#endif  // MOERT_CAPI_SRC_HANDLES_H_
