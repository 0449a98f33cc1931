#include "cli/pack/info_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "cli/common/model_parts.h"
#include "cli/common/output.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/tensor_account.h"
#include "util/bytes_text.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

json PartsJson(const std::vector<ModelPart>& parts) {
  json out = json::array();
  for (const ModelPart& p : parts) {
    out.push_back(
        {{"name", p.name}, {"tensors", p.tensors}, {"bytes", p.bytes}, {"types", p.types}});
  }
  return out;
}

void PrintParts(const json& parts) {
  int64_t total = 0;
  for (const json& p : parts) total += p["bytes"].get<int64_t>();
  Print("\n  {:<20} {:>8} {:>12} {:>7}  types\n", "part", "tensors", "bytes", "share");
  for (const json& p : parts) {
    const int64_t bytes = p["bytes"].get<int64_t>();
    std::vector<std::string> types = p["types"];
    Print("  {:<20} {:>8} {:>12} {:>6.1f}%  {}\n", p["name"].get<std::string>(),
          p["tensors"].get<int64_t>(), util::BytesText(bytes),
          100.0 * static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(total, 1)),
          fmt::join(types, ", "));
  }
  Print("  {:<20} {:>8} {:>12}\n", "total", "", util::BytesText(total));
}

void PrintUnused(const json& info) {
  for (const json& p : info["left_out"]) {
    Print("  left out: {} tensors, {}: {}\n", p["tensors"].get<int64_t>(),
          util::BytesText(p["bytes"].get<int64_t>()), p["name"].get<std::string>());
  }
  constexpr size_t kShown = 4;
  const json& unknown = info["unknown"];
  for (size_t i = 0; i < std::min(kShown, unknown.size()); ++i) {
    Print("  nothing reads {} ({}): the decoder refuses the model\n",
          unknown[i]["name"].get<std::string>(),
          util::BytesText(unknown[i]["bytes"].get<int64_t>()));
  }
  if (unknown.size() > kShown)
    Print("  nor {} more, which --json names\n", unknown.size() - kShown);
  for (const json& name : info["unlisted_tensors"]) {
    Print("  left out: {}: in a shard, but not in the index\n", name.get<std::string>());
  }
  for (const json& name : info["stray_files"]) {
    Print("  left out: file {}: no part of the checkpoint\n", name.get<std::string>());
  }
  std::map<std::string, std::vector<std::string>> fields;  // by reason
  for (const json& field : info["unused_fields"]) {
    fields[field["why"].get<std::string>()].push_back(field["key"].get<std::string>());
  }
  for (const auto& [why, keys] : fields) {
    Print("  config.json: without effect: {} ({})\n", fmt::join(keys, ", "), why);
  }
}

}  // namespace

absl::Status AddAccount(const std::string& path, const HfConfig* config, json* info) {
  (*info)["parts"] = json::array();
  if (config != nullptr) {
    json unused = json::array();
    for (const UnusedField& f : config->unused) unused.push_back({{"key", f.key}, {"why", f.why}});
    (*info)["unused_fields"] = std::move(unused);
  }
  const auto checkpoint = Checkpoint::Open(path);
  if (absl::IsNotFound(checkpoint.status())) return absl::OkStatus();  // a config without weights
  MOERT_RETURN_IF_ERROR(checkpoint.status());
  absl::StatusOr<std::vector<AccountedTensor>> account = absl::UnimplementedError("");
  if (config != nullptr) account = AccountForTensors(**checkpoint, *config);
  if (!account.ok()) {
    (*info)["parts"] = PartsJson(ModelParts(**checkpoint));
    if (config != nullptr) (*info)["not_opened"] = std::string(account.status().message());
    return absl::OkStatus();
  }
  const ModelAccount sums = SumParts(*account);
  (*info)["parts"] = PartsJson(sums.used);
  (*info)["left_out"] = PartsJson(sums.left_out);
  (*info)["unknown"] = PartsJson(sums.unknown);
  (*info)["unlisted_tensors"] = (*checkpoint)->unlisted();
  (*info)["stray_files"] = StrayFiles(**checkpoint);
  return absl::OkStatus();
}

void PrintAccount(const json& info) {
  if (info["parts"].empty()) return;
  PrintParts(info["parts"]);
  if (info.contains("not_opened")) {
    Print("  not opened: {}\n", info["not_opened"].get<std::string>());
  }
  if (info.contains("left_out")) PrintUnused(info);
}

}  // namespace moert::cli
