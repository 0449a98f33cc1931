#include "cli/common/any_trace.h"

#include <fmt/format.h>

#include "absl/strings/match.h"
#include "moert/offline/hf_config.h"
#include "util/status_macros.h"

namespace moert::cli {

absl::StatusOr<std::unique_ptr<TraceReader>> OpenAnyTrace(const std::string& path,
                                                          const std::string& model_dir) {
  if (!absl::EndsWith(path, ".safetensors")) return OpenTrace(path);
  if (model_dir.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("{}: recorded routing says nothing of its model: give --model", path));
  }
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(model_dir));
  TraceHeader header;
  header.model = config.moe;
  header.source = model_dir;
  TraceVersion& version = header.versions.emplace_back();
  version.name = "bf16";
  for (const MoeLayerSpec& layer : header.model.layers) {
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout,
                           ExpertRecordLayout(layer, ExpertFormat::Uniform(Scheme{})));
    version.bytes.emplace_back(layer.num_experts, layout.bytes);
  }
  return OpenRecordedRouting(path, header);
}

}  // namespace moert::cli
