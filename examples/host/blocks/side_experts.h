// The feed-forward half of a layer that has a dense block beside its experts, each between its own
// norms, and a router that the host computes (Gemma 4).
#ifndef MOERT_EXAMPLES_HOST_BLOCKS_SIDE_EXPERTS_H_
#define MOERT_EXAMPLES_HOST_BLOCKS_SIDE_EXPERTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/aligned.h"
#include "host/blocks/linear.h"
#include "host/blocks/mlp.h"
#include "host/blocks/norm.h"
#include "host/moe_runner.h"
#include "moert/model.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/thread_pool.h"

namespace moert::host {

/// Not thread-safe: uses scratch.
class SideExperts {
 public:
  SideExperts() = default;
  /// Reads a layer's dense block, its router, and its norms except the one before its mixer.
  static absl::StatusOr<SideExperts> Load(const Checkpoint& checkpoint, const HfConfig& config,
                                          int layer);

  bool empty() const { return behind_mixer_.empty(); }
  /// See Linear::UseDevice.
  void UseDevice(DeviceProducts* device) { dense_.UseDevice(device); }

  /// Normalizes the mixer's output [rows, hidden] and adds it to the residual stream.
  void AddMixed(ThreadPool* pool, int64_t rows, float* mixed, float* residual);
  /// Adds the dense block and the experts, which `moe` computes, to the residual stream.
  absl::Status Forward(ThreadPool* pool, MoeRunner* moe, int moe_layer, int64_t rows,
                       float* residual);

 private:
  absl::Status Route(ThreadPool* pool, int64_t rows, const float* residual);
  absl::Status RouteRow(int64_t row);

  int64_t hidden_ = 0;
  int experts_ = 0;
  RoutingSpec routing_;
  float eps_ = 0;
  Norm behind_mixer_, before_dense_, behind_dense_, before_experts_, behind_experts_, behind_;
  Mlp dense_;
  Linear router_;
  std::vector<float> router_scale_, expert_scale_;
  float layer_scale_ = 1;
  AlignedVector<float> normed_, dense_out_, expert_out_, logits_, scores_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_BLOCKS_SIDE_EXPERTS_H_
