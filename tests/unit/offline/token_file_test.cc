#include "moert/offline/token_file.h"

#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

std::string Write(const std::string& path, const std::string& bytes) {
  test::WriteFile(path, bytes);
  return path;
}

TEST_CASE("token files: ids, limits, and errors that name file, index, value and range") {
  const test::TempDir dir;
  const std::string good = Write(dir.path() + "/good", std::string("\x01\x00\xFF\x0F\x00\x00", 6));
  REQUIRE(*ReadTokenFile(good, 4096, 0) == std::vector<int32_t>{1, 4095, 0});
  REQUIRE(*ReadTokenFile(good, 4096, 2) == std::vector<int32_t>{1, 4095});
  REQUIRE(*ReadTokenFile(good, 4096, 1000) == std::vector<int32_t>{1, 4095, 0});
  REQUIRE(*ReadTokenFile(good, 65536, INT64_MAX) == std::vector<int32_t>{1, 4095, 0});
  const auto error = [](const std::string& path, int64_t vocab) {
    const auto read = ReadTokenFile(path, vocab, 0);
    REQUIRE(read.status().code() == absl::StatusCode::kInvalidArgument);
    REQUIRE_THAT(std::string(read.status().message()), Catch::StartsWith(path));
    return std::string(read.status().message());
  };
  REQUIRE_THAT(error(good, 4095), Catch::Contains("token 4095 at index 1 is not in 0..4094"));
  REQUIRE_THAT(error(Write(dir.path() + "/odd", "abc"), 65536), Catch::Contains("3 bytes"));
  REQUIRE_THAT(error(Write(dir.path() + "/empty", ""), 65536), Catch::Contains("empty"));
  REQUIRE_THAT(error(dir.path() + "/missing", 65536), Catch::Contains("No such file"));
  REQUIRE_THAT(error(dir.path(), 65536), Catch::Contains("directory"));
}

TEST_CASE("token files of 32-bit ids, by their name") {
  const test::TempDir dir;
  const std::string path =
      Write(dir / "ids.u32", std::string("\x01\x00\x00\x00\xFF\xFF\x01\x00\xFE\xFF\xFF\x7F", 12));
  REQUIRE(*ReadTokenFile(path, int64_t{1} << 31) == std::vector<int32_t>{1, 131071, 2147483646});
  REQUIRE(*ReadTokenFile(path, 151936, 2) == std::vector<int32_t>{1, 131071});
  REQUIRE_THAT(std::string(ReadTokenFile(path, 151936).status().message()),
               Catch::Contains("token 2147483646 at index 2 is not in 0..151935"));
  const std::string negative = Write(dir / "negative.u32", std::string(4, '\xFF'));
  REQUIRE_THAT(std::string(ReadTokenFile(negative, int64_t{1} << 31).status().message()),
               Catch::Contains("token 4294967295"));
  REQUIRE_FALSE(ReadTokenFile(Write(dir / "odd.u32", "abcdef"), 65536).ok());
}

}  // namespace
}  // namespace moert
