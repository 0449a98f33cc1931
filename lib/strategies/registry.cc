// The table of strategies, by name. Built-in strategies are registered like those of a host.
#include "strategies/registry.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/fmt_absl.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "strategies/builtin.h"
#include "strategies/routing_statistics.h"

namespace moert {
namespace {

bool LegalName(const std::string& name) {
  const auto legal = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_';
  };
  return !name.empty() && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(), legal);
}

absl::Status CheckInfo(const StrategyInfo& info) {
  constexpr char kLegal[] = "must begin with a-z and consist of a-z, 0-9, '-' and '_'";
  if (!LegalName(info.name)) return InvalidArgument("strategy name '{}': {}", info.name, kLegal);
  std::vector<std::string> seen;
  for (const StrategyKey& key : info.keys) {
    if (!LegalName(key.name)) {
      return InvalidArgument("strategy {}: key '{}': {}", info.name, key.name, kLegal);
    }
    if (std::find(seen.begin(), seen.end(), key.name) != seen.end()) {
      return InvalidArgument("strategy {}: key '{}' is declared twice", info.name, key.name);
    }
    seen.push_back(key.name);
  }
  return absl::OkStatus();
}

class Registry {
 public:
  static Registry& Get() {
    static auto* const registry = new Registry;
    return *registry;
  }

  absl::Status Add(RegisteredStrategy strategy) {
    MOERT_RETURN_IF_ERROR(CheckInfo(strategy.info));
    const std::string& name = strategy.info.name;
    if (strategy.builder == nullptr) {
      return InvalidArgument("strategy {}: builder must not be null", name);
    }
    const MutexLock lock(&mu_);
    for (const auto& other : table_) {
      if (other->info.name == name) {
        return AlreadyExists("strategy '{}' is registered already; choose another name", name);
      }
    }
    table_.push_back(std::make_unique<const RegisteredStrategy>(std::move(strategy)));
    return absl::OkStatus();
  }

  /// The table as it is now. Entries live as long as the process.
  std::vector<const RegisteredStrategy*> All() const {
    const MutexLock lock(&mu_);
    std::vector<const RegisteredStrategy*> all;
    for (const auto& strategy : table_) all.push_back(strategy.get());
    return all;
  }

 private:
  Registry() {
    for (RegisteredStrategy& strategy : BuiltinStrategies()) {
      table_.push_back(std::make_unique<const RegisteredStrategy>(std::move(strategy)));
    }
  }

  mutable Mutex mu_;  // never held while a builder runs
  std::vector<std::unique_ptr<const RegisteredStrategy>> table_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status RegisterStrategy(StrategyInfo info, StrategyBuilder builder) try {
  return Registry::Get().Add({std::move(info), std::move(builder)});
} catch (...) {
  return ExceptionStatus("registering a strategy");
}

std::vector<StrategyInfo> ListStrategies() {
  std::vector<StrategyInfo> list;
  for (const RegisteredStrategy* strategy : Registry::Get().All()) list.push_back(strategy->info);
  return list;
}

namespace {

/// The present spelling of a strategy that once had a name of its own; empty: it had none.
std::string TodaysSpelling(absl::string_view name, absl::string_view keys) {
  const auto now = [&](absl::string_view first) {
    const absl::string_view comma = first.empty() || keys.empty() ? "" : ",";
    return fmt::format("{}{}{}' now", first, comma, keys);
  };
  if (name == "never-stall") return "is spelled 'graded:" + now("wait=0");
  if (name == "moving-plan") {
    constexpr char kVersions[] = "versions=w8a16_g128/w4a16_g128/w3a16_g128_asym/w2a16_g64_asym";
    return "is spelled 'dynaexq:" + now(absl::StrContains(keys, "versions=") ? "" : kVersions);
  }
  if (name == "activation-path" || name == "load-on-demand") {
    return "is a baseline for research now, which the tools in build/*/lab know "
           "(tests/research/strategies); 'fate' prefetches, 'on-demand' keeps what it can";
  }
  return {};
}

/// An error for keys that have been renamed.
absl::Status CheckRenamedKeys(absl::string_view name, absl::string_view keys) {
  if (name != "importance" && name != "graded") return absl::OkStatus();
  for (const absl::string_view key : absl::StrSplit(keys, ',')) {
    if (!absl::StartsWith(key, "balancer=")) continue;
    return InvalidArgument("strategy {}: '{}' is spelled 'cpu={}' now", name, key,
                           key == "balancer=0"   ? "0"
                           : key == "balancer=1" ? "turns"
                                                 : "1");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Strategy> BuildOne(const std::string& spec, std::optional<Promise> accepted) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(spec, absl::MaxSplits(':', 1));
  std::vector<std::string> names;
  for (const RegisteredStrategy* entry : Registry::Get().All()) {
    names.push_back(entry->info.name);
    if (parts.first != entry->info.name) continue;
    std::vector<std::string> keys;
    for (const StrategyKey& key : entry->info.keys) keys.push_back(key.name);
    MOERT_RETURN_IF_ERROR(CheckRenamedKeys(parts.first, parts.second));
    StrategyContext context;
    context.accepted = accepted;
    MOERT_ASSIGN_OR_RETURN(context.params,
                           StrategyParams::Parse(entry->info.name, parts.second, keys));
    RoutingStatistics calibration;
    if (context.params.Has("calibration")) {
      MOERT_ASSIGN_OR_RETURN(calibration,
                             ReadRoutingStatistics(context.params.Text("calibration", "")));
      context.calibration = &calibration;
    }
    MOERT_ASSIGN_OR_RETURN(Strategy strategy, entry->builder(context));
    strategy.spec = spec;
    MOERT_RETURN_IF_ERROR(strategy.Validate());
    return strategy;
  }
  const std::string spelling = TodaysSpelling(parts.first, parts.second);
  if (!spelling.empty()) return InvalidArgument("strategy '{}' {}", spec, spelling);
  return InvalidArgument("unknown strategy '{}'; there are: {}", parts.first,
                         fmt::join(names, ", "));
}

}  // namespace moert
