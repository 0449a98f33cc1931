// Opening a checkpoint writes nothing, unless a pack is asked for.
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "moert/source/expert_source.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

const std::string kTiny = SourceDir() + "/examples/models/tiny-moe";

// An environment variable that is not there while this lives.
class Unset {
 public:
  explicit Unset(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) value_ = value;
    ::unsetenv(name);
  }
  ~Unset() {
    if (value_) ::setenv(name_, value_->c_str(), 1);
  }
  Unset(const Unset&) = delete;
  Unset& operator=(const Unset&) = delete;

 private:
  const char* name_;
  std::optional<std::string> value_;
};

TEST_CASE("by default nothing is written, and no cache folder is needed") {
  test::TempDir dir;
  OpenModelOptions options;
  options.cache_dir = dir / "cache";
  REQUIRE_OK(OpenModel(kTiny, options).status());
  CHECK(std::filesystem::is_empty(dir.path()));

  const Unset home("HOME"), xdg("XDG_CACHE_HOME");
  REQUIRE_OK(OpenModel(kTiny, {}).status());
  options.cache_dir.clear();
  options.mode = OpenMode::kPack;
  CHECK_THAT(std::string(OpenModel(kTiny, options).status().message()), Catch::Contains("HOME"));
}

}  // namespace
}  // namespace moert
