#include "cli/common/text_file.h"

#include <string>

#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert::cli {
namespace {

TEST_CASE("text files: whole, with a limit, and errors that name the file") {
  const test::TempDir dir;
  const std::string path = dir.path() + "/text";
  test::WriteFile(path, "hello");
  REQUIRE(*ReadTextFile(path, 5) == "hello");
  const auto error = [](const std::string& file, int64_t limit) {
    const auto read = ReadTextFile(file, limit);
    REQUIRE(read.status().code() == absl::StatusCode::kInvalidArgument);
    REQUIRE_THAT(std::string(read.status().message()), Catch::StartsWith(file));
    return std::string(read.status().message());
  };
  CHECK_THAT(error(path, 4), Catch::Contains("limit of 4 bytes"));
  CHECK_THAT(error(dir.path() + "/missing", 4), Catch::Contains("No such file"));
  CHECK_THAT(error(dir.path(), 4), Catch::Contains("directory"));
}

}  // namespace
}  // namespace moert::cli
