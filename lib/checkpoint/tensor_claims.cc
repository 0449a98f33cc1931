#include "checkpoint/tensor_claims.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/errors.h"
#include "base/printable.h"

namespace moert {
namespace {

constexpr char kInputs[] = "activations are rounded by scales of their own, or not at all";
constexpr char kCache[] = "keys and values are not quantized";

struct KnownTensor {
  const char* suffix;
  const char* why;
};
constexpr KnownTensor kKnownTensors[] = {
    {".weight_shape", "the shape is known"},
    {".input_scale", kInputs},
    {".input_global_scale", kInputs},
    {".input_zero_point", kInputs},
    {".k_scale", kCache},
    {".v_scale", kCache},
    {".kv_scale", kCache},
    {".q_scale", kCache},
    {".rotary_emb.inv_freq", "computed from config.json"},
};

}  // namespace

const char* WhyWithoutEffect(absl::string_view name) {
  for (const KnownTensor& known : kKnownTensors) {
    if (absl::EndsWith(name, known.suffix)) return known.why;
  }
  return nullptr;
}

const char* HostTensor(const MoeTensorNames& names, const MoeModelSpec& model,
                       absl::string_view name) {
  for (const MoeLayerSpec& layer : model.layers) {
    for (const auto& [pattern, what] : names.host) {
      if (absl::StartsWith(name, MoeTensorNames::InLayer(pattern, layer.model_layer))) {
        return what.c_str();
      }
    }
    if (names.further_experts.empty()) continue;
    absl::string_view rest = name;
    int64_t expert = 0;
    if (absl::ConsumePrefix(&rest, names.ExpertsPrefix(layer.model_layer)) &&
        absl::SimpleAtoi(rest.substr(0, rest.find('.')), &expert) && expert >= layer.num_experts) {
      return names.further_experts.c_str();
    }
  }
  return nullptr;
}

absl::Status UnreadTensor(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  return InvalidArgument(
      "{}: tensor \"{}\": nothing reads it, and without it the model may compute something else; "
      "moert-pack info lists what is read. Where config.json does not describe these weights, it "
      "is that of another model",
      checkpoint.file(tensor.file).path(), Printable(tensor.name));
}

}  // namespace moert
