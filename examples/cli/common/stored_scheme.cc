#include "cli/common/stored_scheme.h"

#include <fmt/format.h>

#include "moert/source/expert_source.h"

namespace moert::cli {

std::string StoredScheme(const QuantizationConfig& q) {
  const std::string zeros = q.symmetric ? "" : "_zp";
  const int64_t group = q.RecordGroup(/*k=*/q.group);
  switch (q.form) {
    case StoredWeights::kPlain:
      return "bf16";
    case StoredWeights::kFp8:
      return "fp8_b128";
    case StoredWeights::kGptq:
    case StoredWeights::kPackedInt4:
      return fmt::format("w4a16_g{}{}", group, zeros);
    case StoredWeights::kAwq:
      return fmt::format("w4a16_g{}_zp_f16", group);
    case StoredWeights::kInt8:
      return q.int8_inputs ? "w8a8" : fmt::format("w8a16_g{}", q.group);
    case StoredWeights::kPackedFp4:
    case StoredWeights::kModeloptFp4:
      return "nvfp4";
    case StoredWeights::kMxfp4:
    case StoredWeights::kMxfp4Rows:
      return "mxfp4";
  }
  return "bf16";
}

std::optional<PackVersion> MixedVersion(const std::string& model_dir) {
  OpenModelOptions options;
  options.mode = OpenMode::kInPlace;
  const auto source = OpenModel(model_dir, options);
  if (!source.ok()) return std::nullopt;
  PackVersion version;
  version.name = "stored";
  const MoeModelSpec& model = (*source)->model();
  for (int l = 0; l < model.num_layers(); ++l) {
    std::vector<int>& indices = version.assignment.emplace_back();
    for (int e = 0; e < model.layers[static_cast<size_t>(l)].num_experts; ++e) {
      indices.push_back(version.AddFormat((*source)->layout(l, e, 0).format));
    }
  }
  if (version.formats.size() < 2) return std::nullopt;
  return version;
}

}  // namespace moert::cli
