// The dense feed-forward block of layers that are not MoE: down(act(gate x) * (up x)),
// clamped and offset as the activation says.
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_MLP_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_MLP_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "host/blocks/linear.h"
#include "moert/model.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/quantization_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

class Mlp {
 public:
  Mlp() = default;
  /// Reads `name`.{gate,up,down}_proj.
  static absl::StatusOr<Mlp> Load(const Checkpoint& checkpoint, const QuantizationConfig& form,
                                  const std::string& name, int64_t hidden, int64_t intermediate,
                                  const ExpertActivation& activation);

  /// See Linear::UseDevice.
  void UseDevice(DeviceProducts* device) {
    for (Linear* linear : {&gate_, &up_, &down_}) linear->UseDevice(device);
  }

  /// x, out: [rows, hidden]; may not overlap. Not thread-safe: uses scratch.
  void Forward(ThreadPool* pool, const float* x, int64_t rows, float* out);

 private:
  Linear gate_, up_, down_;
  ExpertActivation activation_;
  AlignedVector<float> gated_, upped_;
};

float Sigmoid(float x);
/// act(x)
float Activate(Activation activation, float x);
/// A gated activation.
float Activate(const ExpertActivation& activation, float gate, float up);

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_MLP_H_
