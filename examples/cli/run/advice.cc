#include "cli/run/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/model_parts.h"
#include "moert/engine.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/pack.h"
#include "moert/scheme.h"
#include "util/bytes_text.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr int64_t kContext = 4096;
constexpr const char* kSchemes[] = {"bf16", "w8a16_g128", "w4a16_g128", "w3a16_g128_asym",
                                    "w2a16_g64_asym"};

}  // namespace

absl::StatusOr<ModelNeeds> ReadModelNeeds(const std::string& model_dir) {
  ModelNeeds needs;
  MOERT_ASSIGN_OR_RETURN(const HfConfig config, LoadHfConfig(model_dir));
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model_dir));
  needs.host_bytes = HostBytes(*checkpoint, config, kContext);
  needs.experts = config.moe.total_experts();
  for (const char* name : kSchemes) {
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
    const PackVersion version = PackVersion::Uniform(scheme);
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(config.moe, version));
    ModelNeeds::As as;
    as.scheme = name;
    as.bytes = size.bytes;
    for (const MoeLayerSpec& layer : config.moe.layers) {
      MOERT_ASSIGN_OR_RETURN(const RecordLayout record,
                             ExpertRecordLayout(layer, ExpertFormat::Uniform(scheme)));
      as.token_bytes += layer.routing.top_k * record.bytes;
    }
    needs.schemes.push_back(as);
  }
  MOERT_ASSIGN_OR_RETURN(const auto source,
                         MakeLayoutSource(model_dir, config.moe, {PackVersion::Uniform(Scheme{})}));
  MOERT_ASSIGN_OR_RETURN(const MemoryPlan plan, Engine::Plan(*source, {}));
  needs.fixed_bytes = plan.fixed_bytes();
  return needs;
}

std::vector<std::string> Advise(const std::string& model, const ModelNeeds& needs, int64_t usable,
                                double disk_rate) {
  std::vector<std::string> lines;
  const int64_t room = usable - needs.host_bytes - needs.fixed_bytes;
  lines.push_back(fmt::format(
      "{} usable - {} of dense weights and 4,096 tokens of KV cache - {} fixed = {} for experts",
      util::BytesText(usable), util::BytesText(needs.host_bytes),
      util::BytesText(needs.fixed_bytes), util::BytesText(std::max<int64_t>(0, room))));
  if (room <= 0) {
    lines.emplace_back("the dense weights alone do not fit: this model needs a larger machine");
    return lines;
  }
  const auto command = [&](const std::string& flags) {
    return fmt::format("  moert-run chat --model {}{}", model, flags);
  };
  for (const ModelNeeds::As& as : needs.schemes) {
    if (as.bytes > room) continue;
    const bool stored = as.scheme == "bf16";
    lines.push_back(fmt::format("fastest here: every expert resident as {} ({})", as.scheme,
                                util::BytesText(as.bytes)));
    lines.push_back(command(stored ? " --strategy resident"
                                   : fmt::format(" --as {} --strategy resident", as.scheme)));
    return lines;
  }
  const ModelNeeds::As& four = needs.schemes[2];
  lines.push_back(fmt::format("no scheme fits whole; as {} a share of {:.0f} % does ({} of {})",
                              four.scheme,
                              100.0 * static_cast<double>(room) / static_cast<double>(four.bytes),
                              util::BytesText(room), util::BytesText(four.bytes)));
  if (disk_rate > 0) {
    lines.push_back(
        fmt::format("a token uses {} of experts: {:.0f} ms of reading if all of them were missing",
                    util::BytesText(four.token_bytes),
                    1e3 * static_cast<double>(four.token_bytes) / disk_rate));
  }
  lines.push_back(
      command(fmt::format(" --as {} --budget {}M", four.scheme, (room + needs.fixed_bytes) >> 20)));
  return lines;
}

}  // namespace moert::cli
