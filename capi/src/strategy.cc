#include "moert/strategy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "guard.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

struct Text {
  std::string name, summary, keys;
};

struct Texts {
  Mutex mu;
  std::vector<std::unique_ptr<const Text>> list ABSL_GUARDED_BY(mu);
};

/// The current list. Strategies are never removed, so a text lives as long as the process.
std::vector<const Text*> Strategies() {
  static auto* const texts = new Texts;
  const std::vector<StrategyInfo> all = ListStrategies();
  const MutexLock lock(&texts->mu);
  for (size_t i = texts->list.size(); i < all.size(); ++i) {
    std::vector<std::string> keys;
    for (const StrategyKey& key : all[i].keys) {
      keys.push_back(absl::StrCat(key.name, ": ", key.help));
    }
    texts->list.push_back(
        std::make_unique<const Text>(Text{all[i].name, all[i].summary, absl::StrJoin(keys, "\n")}));
  }
  std::vector<const Text*> list;
  for (const auto& text : texts->list) list.push_back(text.get());
  return list;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

int32_t moert_strategy_count(void) {
  int32_t count = 0;
  Guard(__func__, nullptr, [&] {
    count = static_cast<int32_t>(Strategies().size());
    return absl::OkStatus();
  });
  return count;
}

moert_code moert_strategy_at(int32_t index, moert_strategy_info* info, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    const std::vector<const Text*> all = Strategies();
    MOERT_RETURN_IF_ERROR(CheckRange("index", index, 0, static_cast<int64_t>(all.size()) - 1));
    moert_strategy_info value{};
    value.name = all[index]->name.c_str();
    value.summary = all[index]->summary.c_str();
    value.keys = all[index]->keys.c_str();
    return WriteStruct(value, info, "info");
  });
}

}  // extern "C"
