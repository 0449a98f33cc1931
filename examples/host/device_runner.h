// The decoder computes on the CPU; an engine on a device takes and returns hidden states in device
// memory. This runner carries them across.
#ifndef MOERT_EXAMPLES_HOST_DEVICE_RUNNER_H_
#define MOERT_EXAMPLES_HOST_DEVICE_RUNNER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "examples/host/engine_runner.h"

namespace moert::host {

/// A runner for the engine's backend. `engine` is borrowed, `device` the ordinal it was opened on.
absl::StatusOr<std::unique_ptr<EngineRunner>> MakeRunner(Engine* engine, int64_t max_rows,
                                                         int device);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_DEVICE_RUNNER_H_
