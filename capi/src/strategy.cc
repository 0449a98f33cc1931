#include "moert/strategy.h"

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "guard.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

struct Text {
  std::string name, summary, keys;
};

const std::vector<Text>& Strategies() {
  static const auto* const texts = [] {
    auto* list = new std::vector<Text>;
    for (const StrategyInfo& info : ListStrategies()) {
      list->push_back({info.name, info.summary, absl::StrJoin(info.keys, "\n")});
    }
    return list;
  }();
  return *texts;
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_strategy_info_init(moert_strategy_info* info, uint64_t size) {
  InitStruct(info, size, moert_strategy_info{});
}

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
    const std::vector<Text>& all = Strategies();
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("index is ", index, ", legal is 0 to ", all.size() - 1));
    }
    moert_strategy_info value{};
    value.name = all[index].name.c_str();
    value.summary = all[index].summary.c_str();
    value.keys = all[index].keys.c_str();
    return WriteStruct(value, info, "info");
  });
}

}  // extern "C"
