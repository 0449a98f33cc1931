// Records which tensors of a checkpoint are read, and as which part of the model.
#ifndef MOERT_LIB_CHECKPOINT_TENSOR_CLAIMS_H_
#define MOERT_LIB_CHECKPOINT_TENSOR_CLAIMS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "moert/model.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/tensor_names.h"

namespace moert {

/// Borrows the checkpoint. Copies hold claims of their own.
class TensorClaims {
 public:
  explicit TensorClaims(const Checkpoint* checkpoint)
      : checkpoint_(checkpoint), parts_(checkpoint->tensors().size(), nullptr) {}

  /// `part` must live forever. Claiming a tensor that does not exist does nothing.
  void Claim(const TensorInfo* tensor, const char* part) {
    if (tensor != nullptr) parts_[Place(*tensor)] = part;
  }
  void Claim(const std::string& name, const char* part) { Claim(checkpoint_->Find(name), part); }
  /// Null: the tensor is not claimed.
  const char* PartOf(const TensorInfo& tensor) const { return parts_[Place(tensor)]; }

 private:
  size_t Place(const TensorInfo& tensor) const {
    return static_cast<size_t>(&tensor - checkpoint_->tensors().data());
  }

  const Checkpoint* checkpoint_;
  std::vector<const char*> parts_;
};

/// The reason why a tensor of this name has no effect, wherever it is; null: it may have one.
const char* WhyWithoutEffect(absl::string_view name);

/// The description of a tensor of an MoE block that the host reads and not the library; null: it is
/// no such tensor.
const char* HostTensor(const MoeTensorNames& names, const MoeModelSpec& model,
                       absl::string_view name);

/// The error for a tensor that nothing reads.
absl::Status UnreadTensor(const Checkpoint& checkpoint, const TensorInfo& tensor);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_TENSOR_CLAIMS_H_
