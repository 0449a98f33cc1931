// Gates, biases and shared experts of a model, in host memory.
#ifndef MOERT_LIB_EXEC_MODEL_CONSTANTS_H_
#define MOERT_LIB_EXEC_MODEL_CONSTANTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "base/aligned_array.h"
#include "moert/router.h"
#include "moert/source/expert_source.h"

namespace moert {

class ModelConstants {
 public:
  static absl::StatusOr<ModelConstants> Read(const ExpertSource& source);
  /// Only the layouts of the shared experts; everything else is empty and must not be read.
  static absl::StatusOr<ModelConstants> SizesOnly(const MoeModelSpec& model);

  /// The constants of a layer. Their shared_expert is empty: the record lies at shared_record.
  const LayerConstants& layer(int l) const { return layers_[l]; }
  /// 64-byte aligned; null where there is none.
  const std::byte* shared_record(int l) const {
    return shared_[l].size() == 0 ? nullptr : shared_[l].data();
  }
  /// Constants of all layers.
  std::vector<RouterConstants> routers() const;

 private:
  std::vector<LayerConstants> layers_;
  std::vector<AlignedArray<std::byte>> shared_;
};

}  // namespace moert

#endif  // MOERT_LIB_EXEC_MODEL_CONSTANTS_H_
