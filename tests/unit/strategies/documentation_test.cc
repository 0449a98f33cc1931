// docs/reference/strategies.md is what the registry says: its reference is generated, and compared
// here.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "moert/strategy.h"
#include "support/catch.h"
#include "support/paths.h"

namespace moert {
namespace {

constexpr char kBegin[] = "<!-- registry -->\n";
constexpr char kEnd[] = "<!-- /registry -->";

void AppendKeys(const std::vector<StrategyKey>& keys, std::string* text) {
  absl::StrAppend(text, "\n| key | meaning (default) |\n|---|---|\n");
  for (const StrategyKey& key : keys) {
    absl::StrAppend(text, "| `", key.name, "` | ", absl::StrReplaceAll(key.help, {{"|", "\\|"}}),
                    " |\n");
  }
  *text += '\n';
}

bool Has(const std::vector<StrategyKey>& keys, const StrategyKey& key) {
  return absl::c_any_of(
      keys, [&](const StrategyKey& k) { return k.name == key.name && k.help == key.help; });
}

/// The keys that mean the same in more than one strategy, in the order of their first use.
std::vector<StrategyKey> SharedKeys() {
  std::vector<StrategyKey> once, shared;
  for (const StrategyInfo& info : ListStrategies()) {
    for (const StrategyKey& key : info.keys) {
      if (Has(once, key) && !Has(shared, key)) shared.push_back(key);
      once.push_back(key);
    }
  }
  return shared;
}

std::string Seams(const Strategy& s) {
  std::vector<std::string> seams;
  if (s.routing != nullptr) seams.push_back("routing");
  if (s.prefetch != nullptr) seams.push_back("prefetch");
  if (s.residency != nullptr) seams.push_back("residency");
  if (s.precision != nullptr) seams.push_back("precision");
  if (s.placement != nullptr) seams.push_back("placement");
  return seams.empty() ? "none" : absl::StrJoin(seams, ", ");
}

std::string Reference() {
  const std::vector<StrategyKey> shared = SharedKeys();
  std::string text = "### Keys of several strategies\n";
  AppendKeys(shared, &text);
  for (const StrategyInfo& info : ListStrategies()) {
    const auto made = MakeStrategy(info.name);
    REQUIRE(made.ok());
    absl::StrAppend(&text, "### `", info.name, "`\n\n", info.summary,
                    "\n\n- output: ", made->exact() ? "exact" : "lossy",
                    "\n- policies of its own: ", Seams(*made), "\n");
    if (!made->versions.empty()) {
      absl::StrAppend(&text, "- a pack with: ", absl::StrJoin(made->versions, ", "), "\n");
    }
    std::vector<StrategyKey> own;
    std::vector<std::string> others;
    for (const StrategyKey& key : info.keys) {
      if (Has(shared, key)) {
        others.push_back(absl::StrCat("`", key.name, "`"));
      } else {
        own.push_back(key);
      }
    }
    if (!others.empty()) {
      absl::StrAppend(&text, "- keys above: ", absl::StrJoin(others, ", "), "\n");
    }
    if (own.empty()) {
      text += '\n';
    } else {
      AppendKeys(own, &text);
    }
  }
  return text;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream buffer;
  buffer << file.rdbuf();
  return buffer.str();
}

TEST_CASE("docs/reference/strategies.md says what the registry says") {
  const std::string path = SourceDir() + "/docs/reference/strategies.md";
  std::string text = Read(path);
  const size_t begin = text.find(kBegin);
  const size_t end = text.find(kEnd);
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  const size_t body = begin + sizeof(kBegin) - 1;
  if (std::getenv("MOERT_WRITE_DOCS") != nullptr) {
    text.replace(body, end - body, Reference());
    std::ofstream(path) << text;
    return;
  }
  INFO("to write it: MOERT_WRITE_DOCS=1 build/dev/tests/unit.strategies.documentation_test");
  CHECK(text.substr(body, end - body) == Reference());
}

TEST_CASE("the guide leaves no strategy out") {
  const std::string guide = Read(SourceDir() + "/docs/guide/strategies.md");
  for (const StrategyInfo& info : ListStrategies()) {
    INFO(info.name);
    CHECK(guide.find(absl::StrCat("`", info.name, "`")) != std::string::npos);
  }
}

}  // namespace
}  // namespace moert
