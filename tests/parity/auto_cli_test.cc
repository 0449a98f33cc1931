// auto with an accepted loss, as a user meets it: the tools say what would be chosen, and make it.
#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/measured_calibration.h"
#include "support/paths.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

using Json = nlohmann::json;
using test::Outcome;

struct Files {
  test::TempDir dir;
  std::string calibration = dir / "calibration";

  explicit Files(const std::string& method) {
    const auto config = LoadHfConfig(TinyModelDir());
    REQUIRE_OK(config.status());
    Calibration c =
        test::MeasuredCalibration(config->moe, {"w8a16_g128", "w4a16_g128", "w2a16_g64_asym"}, 0.3);
    c.method = method;
    test::WriteFile(calibration, CalibrationToJson(c));
  }
  std::string Auto(const std::string& loss) const {
    return " --strategy auto:loss=" + loss + ",calibration=" + calibration +
           " --budget 40% --link-gbps 0.006 --json - ";
  }
  Outcome Ppl(const std::string& loss) const {
    return test::RunTool("run",
                         "ppl --model " + TinyModelDir() + " --cache " + dir / "cache" +
                             " --clock virtual --threads 1 --limit 32 --window 32 --tokens " +
                             EvalDir() + "/gsm8k.tokens.u16" + Auto(loss),
                         dir);
  }
  Json Info(const std::string& loss) const {
    return Json::parse(
        test::RunTool("pack", "info " + TinyModelDir() + " --rows 32" + Auto(loss), dir)
            .out)["choice"];
  }
};

TEST_CASE("the version within the accepted loss is said beforehand, made once and served") {
  const Files files("rtn");
  const Json info = files.Info("0.01");
  const std::string spec = info["strategy"];
  CHECK_THAT(spec, Catch::StartsWith("fate:scheme=mixed-"));
  CHECK(info["versions"].size() == 1);
  const Outcome first = files.Ppl("0.01");
  INFO(first.err);
  REQUIRE(first.status == 0);
  CHECK_THAT(first.err, Catch::Contains("note: " + spec) && Catch::Contains("accepted") &&
                            Catch::Contains("(once;"));
  CHECK(Json::parse(first.out)["strategy"] == spec);
  const Outcome second = files.Ppl("0.01");
  CHECK_THAT(second.err, !Catch::Contains("(once;"));
  CHECK(Json::parse(second.out)["window_nll"] == Json::parse(first.out)["window_nll"]);
}

TEST_CASE("where no loss is accepted, bf16 is served") {
  const Files files("rtn");
  const Outcome exact = files.Ppl("0");
  INFO(exact.err);
  REQUIRE(exact.status == 0);
  CHECK(Json::parse(exact.out)["strategy"] == "fate");
  CHECK(files.Info("0").is_null());
}

TEST_CASE("what gptq has calibrated is not made by another method") {
  const Outcome outcome = Files("gptq").Ppl("0.01");
  CHECK(outcome.status == 2);
  CHECK_THAT(outcome.err, Catch::Contains("--method hqq") && Catch::Contains("--experts"));
}

}  // namespace
}  // namespace moert
