// The experts and layer constants of an HF checkpoint, by layer and expert instead of by name.
#ifndef MOERT_LIB_FORMAT_CHECKPOINT_EXPERTS_H_
#define MOERT_LIB_FORMAT_CHECKPOINT_EXPERTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "format/hf_config.h"
#include "format/safetensors.h"
#include "moert/expert_source.h"

namespace moert {

/// One expert's matrices as bf16 bits, row-major: gate and up [intermediate, hidden], down [hidden,
/// intermediate].
struct ExpertWeights {
  std::vector<uint16_t> gate, up, down;
};

/// Thread-safe. Borrows both arguments of Create.
class CheckpointExperts {
 public:
  /// Fails at once, naming the tensor, if any that the model needs is missing or has another shape
  /// or a type that is not floating point.
  static absl::StatusOr<std::unique_ptr<CheckpointExperts>> Create(const Checkpoint* checkpoint,
                                                                   const HfConfig* config);

  const MoeModelSpec& model() const { return config_->moe; }
  /// `layer` counts MoE layers. Weights that are not bf16 are rounded to nearest even.
  absl::Status ReadExpert(int layer, int expert, ExpertWeights* out) const;
  /// The shared expert as a bf16 record.
  absl::StatusOr<LayerConstants> ReadConstants(int layer) const;

 private:
  CheckpointExperts(const Checkpoint* checkpoint, const HfConfig* config)
      : checkpoint_(checkpoint), config_(config) {}
  absl::Status Check(const std::string& name, absl::Span<const int64_t> shape) const;
  absl::Status CheckLayer(const MoeLayerSpec& layer) const;
  absl::Status ReadMatrix(const std::string& name, std::vector<uint16_t>* out) const;

  const Checkpoint* const checkpoint_;
  const HfConfig* const config_;
};

/// Packs one expert as a bf16 record at `record`, which holds layout.bytes; gaps are zeroed.
absl::Status PackExpertBf16(const RecordLayout& layout, const ExpertWeights& weights,
                            std::byte* record);

}  // namespace moert

#endif  // MOERT_LIB_FORMAT_CHECKPOINT_EXPERTS_H_
