#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/common/args.h"
#include "cli/common/model_parts.h"
#include "cli/common/output.h"
#include "cli/common/plot.h"
#include "cli/common/stored_scheme.h"
#include "cli/common/strategy_names.h"
#include "cli/pack/commands.h"
#include "cli/pack/info_account.h"
#include "cli/pack/info_plan.h"
#include "moert/offline/checkpoint.h"
#include "moert/offline/hf_config.h"
#include "moert/offline/pack.h"
#include "moert/tools/auto_strategy.h"
#include "moert/tools/profile.h"
#include "util/bytes_text.h"
#include "util/printable.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

constexpr char kInfo[] = "moert-pack info";

constexpr int64_t kContext = 4096;  // tokens that the host's own memory is shown for

bool IsFile(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}
bool Exists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

json ModelJson(const MoeModelSpec& model) {
  const MoeLayerSpec& first = model.layers.front();
  return {{"architecture", model.architecture},
          {"moe_layers", model.num_layers()},
          {"experts", model.total_experts()},
          {"experts_per_layer", first.num_experts},
          {"top_k", first.routing.top_k},
          {"routing", std::string(RoutingKindName(first.routing.kind))},
          {"hidden", first.hidden},
          {"intermediate", first.intermediate},
          {"shared_intermediate", first.shared_intermediate}};
}

void PrintModel(const json& m) {
  Print("  {}: {} MoE layers{}, {} experts of {} x {} a layer, {} a token ({}), {}\n",
        m["architecture"].get<std::string>(), m["moe_layers"].get<int>(),
        m.contains("layers") ? fmt::format(" of {}", m["layers"].get<int>()) : "",
        m["experts_per_layer"].get<int>(), m["hidden"].get<int64_t>(),
        m["intermediate"].get<int64_t>(), m["top_k"].get<int>(), m["routing"].get<std::string>(),
        m["shared_intermediate"].get<int64_t>() == 0
            ? "no shared expert"
            : fmt::format("shared expert of {}", m["shared_intermediate"].get<int64_t>()));
}

std::string BudgetText(const json& budget) {
  return budget["bytes"].is_null() ? "-" : util::BytesText(budget["bytes"].get<int64_t>());
}

/// Whether a version is shown without --all: the stored one and, where that is floats, usual
/// choices of fewer bits.
bool Shown(const json& version, const json& info, bool all) {
  if (all || !info.contains("stored_scheme")) return true;
  const std::string name = version["name"], stored = info["stored_scheme"];
  if (name == stored) return true;
  if (stored != "bf16") return false;
  for (const char* usual : {"w8a16_g128", "w4a16_g128", "w3a16_g128_asym", "w2a16_g64_asym"}) {
    if (name == usual) return true;
  }
  return false;
}

void PrintVersions(const json& versions, const json& info, bool all) {
  Print("\n  {:<20} {:>12} {:>12} {:>9}   {}\n", "routed experts as", "stored bits", "bytes",
        "padding", "--budget for all, half, a quarter, the least");
  for (const json& v : versions) {
    if (!Shown(v, info, all)) continue;
    const std::string name = v["name"];
    const bool stored = info.contains("stored_scheme") && info["stored_scheme"] == name;
    Print("  {:<20} {:>12.3f} {:>12} {:>8.1f}%", name + (stored ? " *" : ""),
          v["stored_bits"].get<double>(), util::BytesText(v["bytes"].get<int64_t>()),
          100 * v["padding"].get<double>());
    const auto need = v.find("need");
    if (need != v.end()) {
      for (const json& b : (*need)["budgets"]) Print(" {:>11}", BudgetText(b));
      Print(" {:>11}", util::BytesText((*need)["minimum_bytes"].get<int64_t>()));
    }
    Print("\n");
  }
  if (!info.contains("stored_scheme")) return;
  Print("  * as the file has them{}\n", all ? "" : "; --all lists every scheme");
}

void PrintPlan(const std::string& what, const json& need, const json& experts) {
  if (!need.contains("plan")) return;
  const json& plan = need["plan"];
  if (!plan["fits"].get<bool>()) {
    Print("  {:<20} does not fit, the least is {}\n", what,
          util::BytesText(need["minimum_bytes"].get<int64_t>()));
    return;
  }
  const int64_t slots = plan["slots"].get<int64_t>(), low = plan["low_slots"].get<int64_t>();
  const int64_t total = experts.get<int64_t>();
  Print("  {:<20} {} for experts, {} fixed: ", what,
        util::BytesText(plan["pool_bytes"].get<int64_t>()),
        util::BytesText(plan["fixed_bytes"].get<int64_t>()));
  if (low > 0) Print("{} high and {} low versions of {} experts\n", slots, low, total);
  if (low == 0) Print("{} of {} experts\n", std::min(slots, total), total);
  if (plan.contains("why")) {
    Print("  {:<20} {}: {}\n", "", plan["strategy"].get<std::string>(),
          plan["why"].get<std::string>());
  }
}

void PrintPlans(const json& info, const json& versions, bool all) {
  if (!info.contains("budget")) return;
  Print("\n  with --budget {} --strategy {} and steps of up to {} tokens:\n",
        info["budget"].get<std::string>(), info["strategy"].get<std::string>(),
        info["rows"].get<int64_t>());
  const json& experts = info["model"]["experts"];
  for (const json& v : versions) {
    if (v.contains("need") && Shown(v, info, all))
      PrintPlan(v["name"].get<std::string>(), v["need"], experts);
  }
  if (info.contains("need")) PrintPlan("all versions", info["need"], experts);
  if (info.contains("choice")) {
    Print("  {:<20} {}: {}\n", "chosen", info["choice"]["strategy"].get<std::string>(),
          info["choice"]["why"].get<std::string>());
  }
  if (info.contains("profile") && info["profile"] == "reference") {
    Print(
        "  times are of the logical machine `reference`, not of this one: measure it by\n"
        "  moert-bench probe --json FILE and give --profile FILE, or see moert-run doctor\n");
  }
  if (!info.contains("host_bytes") || info["host_bytes"].is_null()) return;
  Print(
      "  beside the budget: {} of dense weights and {} tokens of KV cache, held by the host; the "
      "experts' files, read when they are missing\n",
      util::BytesText(info["host_bytes"].get<int64_t>()), kContext);
}

void AddOptions(const PlanOptions& options, json* info) {
  if (options.budget.empty()) return;
  (*info)["budget"] = options.budget;
  (*info)["strategy"] = options.strategy;
  (*info)["rows"] = options.rows;
  if (IsAuto(options.strategy)) (*info)["profile"] = options.profile;
}

absl::StatusOr<json> DescribePack(const std::string& path, const PlanOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const PackInfo m, ReadPackInfo(path));
  json versions = json::array();
  for (const PackVersion& v : m.versions) {
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(m.model, v));
    versions.push_back(VersionJson(v, size));
  }
  MOERT_ASSIGN_OR_RETURN(json need, BudgetsJson(path, m.model, m.versions, options));
  json info = {{"kind", "pack"},
               {"path", path},
               {"format_version", kPackFormatVersion},
               {"model", ModelJson(m.model)},
               {"versions", std::move(versions)},
               {"quantizer", json::parse(m.quantizer_json, nullptr, false)},
               {"source_identity", m.source_identity},
               {"files", m.num_files},
               {"bytes", m.bytes},
               {"need", std::move(need)}};
  AddOptions(options, &info);
  return info;
}

// Describes a checkpoint whose configuration is not read, by the names of its tensors.
absl::StatusOr<json> DescribeUnknown(const std::string& path, const absl::Status& why) {
  json info = {{"kind", "checkpoint"}, {"path", path}, {"not_read", std::string(why.message())}};
  MOERT_RETURN_IF_ERROR(AddAccount(path, nullptr, &info));
  if (info["parts"].empty()) return why;
  return info;
}

// A checkpoint, and what its experts would take in each scheme.
absl::StatusOr<json> DescribeCheckpoint(const std::string& path, const PlanOptions& options) {
  const absl::StatusOr<HfConfig> read = LoadHfConfig(path);
  if (!read.ok()) return DescribeUnknown(path, read.status());
  const HfConfig& config = *read;
  json schemes = json::array();
  PlanOptions each = options;
  if (IsAuto(options.strategy)) each.strategy = "auto";  // a scheme alone leaves no choice
  std::vector<PackVersion> versions;
  for (const Scheme& scheme : Scheme::All()) versions.push_back(PackVersion::Uniform(scheme));
  const std::optional<PackVersion> mixed = MixedVersion(path);
  if (mixed) versions.insert(versions.begin(), *mixed);
  for (const PackVersion& version : versions) {
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(config.moe, version));
    json row = VersionJson(version, size);
    MOERT_ASSIGN_OR_RETURN(row["need"], BudgetsJson(path, config.moe, {version}, each));
    schemes.push_back(std::move(row));
  }
  json host = nullptr;  // a config without its weights
  if (const auto checkpoint = Checkpoint::Open(path); checkpoint.ok()) {
    host = HostBytes(**checkpoint, config, kContext);
  }
  json model = ModelJson(config.moe);
  model["layers"] = config.num_hidden_layers;
  model["vocabulary"] = config.vocab_size;
  model["positions"] = config.max_position_embeddings;
  json info = {{"kind", "checkpoint"},
               {"path", path},
               {"model", std::move(model)},
               {"stored", std::string(StoredWeightsName(config.quantization.form))},
               {"stored_scheme", mixed ? mixed->name : StoredScheme(config.quantization)},
               {"host_bytes", std::move(host)},
               {"schemes", std::move(schemes)}};
  MOERT_RETURN_IF_ERROR(AddAccount(path, &config, &info));
  AddOptions(options, &info);
  MOERT_RETURN_IF_ERROR(AddChoice(path, config, options, &info));
  return info;
}

absl::StatusOr<json> DescribeFile(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path));
  json tensors = json::array();
  for (const TensorInfo& t : checkpoint->tensors()) {
    tensors.push_back({{"name", std::string(t.name)},
                       {"dtype", TypeName(t)},
                       {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
                       {"bytes", t.bytes}});
  }
  return json{{"kind", "safetensors"},
              {"path", path},
              {"bytes", checkpoint->file(0).size()},
              {"tensors", std::move(tensors)}};
}

absl::StatusOr<json> Info(const std::string& path, const PlanOptions& options) {
  if (IsFile(path)) return DescribeFile(path);
  if (Exists(path + "/" + kManifestFile)) return DescribePack(path, options);
  for (const char* file : {"/config.json", "/model.safetensors", "/model.safetensors.index.json"}) {
    if (Exists(path + file)) return DescribeCheckpoint(path, options);
  }
  return absl::NotFoundError(
      fmt::format("{}: neither an expert pack ({}), nor a checkpoint (config.json), nor a file",
                  path, kManifestFile));
}

void Show(const json& info, bool all) {
  const std::string kind = info["kind"];
  Print("{}: {}\n", info["path"].get<std::string>(), kind);
  if (kind == "safetensors") {
    for (const json& t : info["tensors"]) {
      Print("  {:<50} {:<5} {}\n", util::Printable(t["name"].get<std::string>()),
            t["dtype"].get<std::string>(), t["shape"].dump());
    }
    return;
  }
  if (info.contains("not_read")) {
    Print("  not read: {}\n", info["not_read"].get<std::string>());
    return PrintAccount(info);
  }
  PrintModel(info["model"]);
  if (kind == "checkpoint") {
    PrintPlans(info, info["schemes"], all);
    PrintVersions(info["schemes"], info, all);
    return PrintAccount(info);
  }
  PrintVersions(info["versions"], info, all);
  Print("  --budget for all, half, a quarter, the least:");
  for (const json& b : info["need"]["budgets"]) Print(" {},", BudgetText(b));
  Print(" {}\n", util::BytesText(info["need"]["minimum_bytes"].get<int64_t>()));
  PrintPlans(info, json::array(), all);
  Print("  quantizer {}, {} files, {}\n", info["quantizer"].dump(), info["files"].get<int64_t>(),
        util::BytesText(info["bytes"].get<int64_t>()));
}

}  // namespace

int InfoMain(int argc, const char* const* argv) {
  std::string path, json_path, picture;
  bool quiet = false, all = false;
  PlanOptions options;
  ArgParser parser(kInfo,
                   "Describes an expert pack, a checkpoint (and what its experts would take in "
                   "each scheme), or a safetensors file, and what fits into a budget.");
  parser.AddPositional("PACK|DIR|FILE", &path, "what to describe");
  parser.AddString("budget", &options.budget,
                   "shows what fits: 512MiB, 8GiB (everything), or 25% of the experts");
  parser.AddString("strategy", &options.strategy, "the strategy to plan for");
  parser.Suggest("strategy", StrategyNames());
  parser.AddInt64("rows", &options.rows, "tokens of the largest step to plan for", 1, 65536);
  parser.AddString("profile", &options.profile,
                   "hardware profile that `auto` expects times by: reference, or a file of "
                   "moert-bench");
  parser.AddDouble("link-gbps", &options.link_gbps, "rate of transfers instead, GB/s");
  parser.AddSwitch("all", &all, "every scheme, not only what is stored and the usual ones");
  parser.AddJson(&json_path);
  parser.AddQuiet(&quiet, "table");
  parser.AddOutput("plot", &picture, "draws the figures: FILE.svg, .png or .pdf (matplotlib)");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::StatusOr<HardwareProfile> machine = LoadProfile(options.profile);
  if (!machine.ok()) return ReportError(kInfo, machine.status());
  options.machine = *machine;
  const absl::StatusOr<json> info = Info(path, options);
  if (!info.ok()) return ReportError(kInfo, info.status());
  if (!quiet) Show(*info, all);
  const absl::Status written = WriteFigures(json_path, picture, *info);
  if (!written.ok()) return ReportError(kInfo, written);
  if (!info->contains("not_read")) return kExitOk;
  return ReportError(kInfo, absl::InvalidArgumentError((*info)["not_read"].get<std::string>()));
}

}  // namespace moert::cli
