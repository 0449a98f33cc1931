// moert-bench probe writes a profile that the tools take.
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "moert/tools/profile.h"
#include "support/paths.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moert {
namespace {

TEST_CASE("a probed profile loads, and is a profile of this machine") {
  const test::TempDir dir;
  const std::string path = dir / "hw.json";
  const std::string command = BinDir() + "/moert-bench probe --quiet --dir " + dir.path() +
                              " --file-size 64MiB --repeats 1 --tokens 1,8,32 --json " + path;
  REQUIRE(WEXITSTATUS(std::system(command.c_str())) == 0);
  const auto profile = LoadProfile(path);
  REQUIRE_OK(profile.status());
  CHECK(profile->link_bytes_per_s > 1e6);
  CHECK(profile->compute.size() == 3);
  CHECK(profile->compute[2].tokens == 32);
  CHECK(profile->decode_layer_ns > 0);
  CHECK(profile->ExpertNs(1 << 20, 32) > profile->ExpertNs(1 << 20, 1));
  const auto json = nlohmann::json::parse(test::ReadFile(path));
  CHECK(json["probe"]["disk"].size() == 45);
  CHECK(json["probe"]["memory"]["read"]["min"] > 0);
  CHECK(json["probe"]["wake_ns"]["condition"]["median"] > 0);
  CHECK(json["probe"]["experts"].size() % 4 == 0);
  CHECK(json["probe"].contains("pin_limit_bytes"));
}

}  // namespace
}  // namespace moert
