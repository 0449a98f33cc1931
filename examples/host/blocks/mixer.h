// The part of a layer in which positions see each other: attention of some kind, or a recurrence.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_MIXER_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_MIXER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "host/blocks/rope.h"
#include "host/device_products.h"
#include "host/sequence_state.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Not thread-safe: uses scratch.
class Mixer {
 public:
  virtual ~Mixer() = default;

  /// Makes the state of a sequence; capacity: positions, a multiple of 16.
  virtual std::unique_ptr<LayerState> NewState(int64_t capacity) const = 0;

  /// See Linear::UseDevice.
  virtual void UseDevice(DeviceProducts* device) = 0;

  /// x, out: [rows, hidden], all rows of all groups; may not overlap. The rope must reach the last
  /// position. Writes to the sequences' states but leaves their lengths. A row's result depends
  /// only on its sequence up to its position.
  virtual void Forward(ThreadPool* pool, absl::Span<const RowGroup> groups, const float* x,
                       int64_t rows, float* out) = 0;
};

/// Loads the mixer that `config` gives `layer`. `rope` is borrowed. Unimplemented for sizes that
/// the example decoder does not run.
absl::StatusOr<std::unique_ptr<Mixer>> LoadMixer(const Checkpoint& checkpoint,
                                                 const HfConfig& config, int layer,
                                                 const Rope* rope);

/// The beginning of the names of a layer's tensors: "model.layers.N.".
std::string LayerPrefix(const HfConfig& config, int layer);

/// Unimplemented, naming the field, unless `value` is a multiple of the width of a panel.
absl::Status CheckPanels(const char* field, int64_t value);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_MIXER_H_
