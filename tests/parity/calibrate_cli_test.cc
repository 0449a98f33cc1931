// moert-pack calibrate with amounts beyond what there is.
#include <string>

#include "support/architecture_fixture.h"
#include "support/catch.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::Outcome;
using test::ReadFile;
using test::TempDir;

TEST_CASE("more tokens than there are mean all of them") {
  TempDir dir;
  std::string tokens;
  for (int i = 0; i < 64; ++i) tokens += {static_cast<char>(7 * i % 128), '\0'};
  test::WriteFile(dir / "tokens.u16", tokens);
  const auto calibrate = [&](const std::string& name, const std::string& amounts) {
    const Outcome outcome = test::RunTool(
        "pack",
        "calibrate --model " + test::ArchitectureDir("xverse") + " --tokens " + dir / "tokens.u16" +
            " --window 16 --schemes w4a16_g32 --threads 1 --out " + dir / name + amounts,
        dir);
    INFO(amounts << ": " << outcome.err);
    REQUIRE(outcome.status == 0);
    return ReadFile(dir / name);
  };
  const std::string whole = calibrate("whole", " --probe-tokens 64 --calibration-tokens 64");
  for (const char* amount : {"9223372036854775807", "9223372036854775800", "65"}) {
    CHECK(calibrate(std::string("probe") + amount, std::string(" --probe-tokens ") + amount) ==
          whole);
    CHECK(calibrate(std::string("all") + amount,
                    std::string(" --probe-tokens 64 --calibration-tokens ") + amount) == whole);
  }
}

}  // namespace
}  // namespace moert
