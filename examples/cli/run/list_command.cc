#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "cli/common/args.h"
#include "cli/common/output.h"
#include "cli/common/report.h"
#include "cli/run/commands.h"
#include "moert/mixed_group_gemm.h"
#include "moert/offline/hf_config.h"
#include "moert/scheme.h"
#include "moert/strategy.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kList[] = "moert-run list";
absl::StatusOr<nlohmann::json> Strategies() {
  nlohmann::json list = nlohmann::json::array();
  for (const StrategyInfo& info : ListStrategies()) {
    MOERT_ASSIGN_OR_RETURN(const Strategy strategy, MakeStrategy(info.name));
    nlohmann::json keys = nlohmann::json::array();
    for (const StrategyKey& key : info.keys)
      keys.push_back({{"name", key.name}, {"help", key.help}});
    list.push_back({{"name", info.name},
                    {"exact", strategy.exact()},
                    {"promise", std::string(PromiseName(strategy.promise()))},
                    {"versions", strategy.versions},
                    {"summary", info.summary},
                    {"keys", std::move(keys)}});
  }
  return list;
}

nlohmann::json Schemes() {
  nlohmann::json list = nlohmann::json::array();
  for (const Scheme& scheme : Scheme::All()) {
    list.push_back({{"name", scheme.Name()}, {"weight_bits", scheme.weight_bits}});
  }
  return list;
}

absl::StatusOr<nlohmann::json> List(const std::string& what) {
  nlohmann::json all;
  if (what.empty() || what == "strategies") {
    MOERT_ASSIGN_OR_RETURN(all["strategies"], Strategies());
  }
  if (what.empty() || what == "schemes") all["schemes"] = Schemes();
  if (what.empty() || what == "models") all["models"] = SupportedArchitectures();
  if (what.empty() || what == "kernels") all["kernels"] = MixedGroupGemm::KernelNames();
  if (!all.is_null()) return all;
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a list; legal are strategies, schemes, models and kernels", what));
}

void ShowLists(const nlohmann::json& all) {
  for (const auto& [name, list] : all.items()) {
    Print("{}\n", name);
    for (const nlohmann::json& item : list) {
      if (item.is_string()) {
        Print("  {}\n", item.get<std::string>());
      } else if (name == "schemes") {
        Print("  {:<20} {} bits\n", item["name"].get<std::string>(),
              item["weight_bits"].get<int>());
      } else {
        Print("  {:<16} {:<8} {}\n", item["name"].get<std::string>(),
              item["promise"].get<std::string>(), item["summary"].get<std::string>());
      }
    }
  }
}

}  // namespace

int ListMain(int argc, const char* const* argv) {
  std::string what, json;
  bool quiet = false;
  ArgParser parser(kList,
                   "Lists what --strategy, --schemes, --as and --kernels may name, and "
                   "the architectures (model_type) that can be opened.");
  parser.AddPositional("WHAT", &what, "strategies, schemes, models or kernels; none: all", false);
  parser.AddJson(&json);
  parser.AddQuiet(&quiet, "table");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::StatusOr<nlohmann::json> all = List(what);
  if (!all.ok()) return ReportError(kList, all.status());
  if (!quiet) ShowLists(*all);
  if (json.empty()) return kExitOk;
  const absl::Status written = WriteJson(json, *all);
  return written.ok() ? kExitOk : ReportError(kList, written);
}

}  // namespace moert::cli
