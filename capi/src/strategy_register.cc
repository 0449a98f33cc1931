// Strategies that a host registers.
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "guard.h"
#include "moert/strategy.h"
#include "policy_adapter.h"
#include "struct_io.h"

struct moert_strategy_params {
  const moert::StrategyParams* params;
  std::deque<std::string> texts;  // that the host was given
};

namespace moert::capi {
namespace {

/// "key: meaning" lines.
absl::StatusOr<std::vector<StrategyKey>> ReadKeys(const char* text) {
  std::vector<StrategyKey> keys;
  if (text == nullptr) return keys;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (parts.second.empty()) return Illegal("info.keys: '", line, "' is no \"key: meaning\" line");
    keys.push_back({parts.first, parts.second});
  }
  return keys;
}

absl::StatusOr<Strategy> Build(const std::string& name, moert_strategy_factory factory, void* user,
                               const StrategyContext& context) {
  moert_strategy_params params{&context.params, {}};
  auto policies = std::make_shared<HostPolicies>();
  policies->c.struct_size = sizeof(policies->c);
  moert_strategy made{sizeof(made), "on-demand", &policies->c};
  moert_failure failure;
  MOERT_RETURN_IF_ERROR(FromCallback(factory(user, &params, &made, &failure), failure,
                                     absl::StrCat("strategy ", name)));
  policies->owns = true;  // whatever fails from here on
  if (made.base == nullptr) return Illegal("strategy ", name, ": base: must not be NULL");
  MOERT_ASSIGN_OR_RETURN(Strategy strategy, MakeStrategy(made.base));
  MOERT_RETURN_IF_ERROR(InstallPolicies(policies, &strategy));
  PoliciesOfStrategies::Note(std::move(policies));
  return strategy;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

const char* moert_strategy_params_get(moert_strategy_params* params, const char* key) {
  if (params == nullptr || key == nullptr) return nullptr;
  const char* text = nullptr;
  Guard(__func__, nullptr, [&] {
    if (params->params->Has(key)) {
      text = params->texts.emplace_back(params->params->Text(key, "")).c_str();
    }
    return absl::OkStatus();
  });
  return text;
}

moert_code moert_strategy_register(const moert_strategy_info* info, moert_strategy_factory factory,
                                   void* user_data, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    moert_strategy_info checked{};
    MOERT_RETURN_IF_ERROR(ReadStruct(info, "info", &checked));
    if (checked.name == nullptr) return NullArgument("info.name");
    if (checked.summary == nullptr) return NullArgument("info.summary");
    MOERT_REQUIRE_NOT_NULL(factory);
    moert::StrategyInfo cpp{checked.name, checked.summary, {}};
    MOERT_ASSIGN_OR_RETURN(cpp.keys, ReadKeys(checked.keys));
    return moert::RegisterStrategy(std::move(cpp),
                                   [name = std::string(checked.name), factory,
                                    user_data](const moert::StrategyContext& context) {
                                     return Build(name, factory, user_data, context);
                                   });
  });
}

}  // extern "C"
