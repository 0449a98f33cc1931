// A checkpoint: config.json up to a zero byte, then the safetensors file that has to fit it.
#include <algorithm>

#include "checkpoint/checkpoint_experts.h"
#include "fuzz/fuzz.h"
#include "moert/offline/linear_weight.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  if (zero == absl::string_view::npos) return 0;
  const auto config = ParseHfConfig(all.substr(0, zero), "fuzz");
  if (!config.ok()) return 0;
  fuzz::MemoryEnv env(std::string(all.substr(zero + 1)));
  const auto checkpoint = Checkpoint::Open("fuzz.safetensors", &env);
  if (!checkpoint.ok()) return 0;
  const auto experts = CheckpointExperts::Create(checkpoint->get(), &*config);
  if (!experts.ok()) return 0;
  // It fits: everything must be there to be read. Values of quantized weights may be illegal.
  const std::vector<TensorInfo>& tensors = (*checkpoint)->tensors();
  const bool quantized = config->quantization.form != StoredWeights::kPlain ||
                         std::any_of(tensors.begin(), tensors.end(),
                                     [](const TensorInfo& t) { return t.dtype == DType::kF8E4M3; });
  const auto require = [&](const absl::Status& status) {
    FUZZ_REQUIRE(status.ok() || (quantized && absl::IsInvalidArgument(status)));
    return status.ok();
  };
  for (int l = 0; l < config->moe.num_layers(); ++l) {
    const MoeLayerSpec& layer = config->moe.layers[static_cast<size_t>(l)];
    require((*experts)->ReadConstants(l).status());
    for (int e = 0; e < layer.num_experts; ++e) {
      const auto layout = ExpertRecordLayout(layer, (*experts)->stored(l, e));
      FUZZ_REQUIRE(layout.ok());
      ExpertWeights weights;
      std::vector<std::byte> record(static_cast<size_t>(layout->bytes));
      require((*experts)->ReadRecord(l, e, *layout, record.data()));
      if (!require((*experts)->ReadExpert(l, e, &weights))) continue;
      const auto matrix = static_cast<size_t>(layer.hidden * layer.intermediate);
      const auto up = LinearWeight::Open(
          **checkpoint, config->quantization,
          WeightBase((*experts)->names().Expert(layer.model_layer, e, Projection::kUp)),
          layer.intermediate, layer.hidden);
      std::vector<uint16_t> rows(matrix);
      if (up.ok() && up->Read(0, absl::MakeSpan(rows)).ok()) FUZZ_REQUIRE(rows == weights.up);
      FUZZ_REQUIRE(weights.gate.size() == matrix && weights.up.size() == matrix &&
                   weights.down.size() == matrix);
    }
  }
  return 0;
}
