// Profiles: measured compute rates and what they cost.
#include "moert/tools/profile.h"
#include "support/paths.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"

namespace moert {
namespace {

absl::StatusOr<HardwareProfile> Load(const std::string& text) {
  const test::TempDir dir;
  test::WriteFile(dir / "p.json", text);
  return LoadProfile(dir / "p.json");
}

TEST_CASE("without compute rates an expert's time is part of the layer's") {
  const HardwareProfile reference = *LoadProfile("reference");
  CHECK(reference.compute.empty());
  CHECK(reference.ExpertNs(1 << 20, 4) == 0);
  CHECK(reference.LayerNs(false, 1) == 500'000);
  CHECK(reference.LayerNs(true, 100) == 700'000);
  CHECK(reference.request_rule_ns == 6'000);
}

TEST_CASE("between two rates time is interpolated, beyond the last it is proportional") {
  const auto p = Load(R"({"compute": [{"tokens": 2, "weight_bytes_per_s": 1e9},
                                      {"tokens": 10, "weight_bytes_per_s": 0.5e9}]})");
  REQUIRE_OK(p.status());
  CHECK(p->ExpertNs(1000, 0) == 0);
  CHECK(p->ExpertNs(1000, 1) == Approx(1000));
  CHECK(p->ExpertNs(1000, 2) == Approx(1000));
  CHECK(p->ExpertNs(1000, 6) == Approx(1500));
  CHECK(p->ExpertNs(1000, 10) == Approx(2000));
  CHECK(p->ExpertNs(1000, 40) == Approx(8000));
  CHECK(p->ExpertNs(3000, 6) == Approx(4500));
}

TEST_CASE("a version may have rates of its own") {
  const auto p = Load(R"({"compute": [{"tokens": 1, "weight_bytes_per_s": 1e9}],
                          "version_compute": {"w4": {"compute": [
                              {"tokens": 1, "weight_bytes_per_s": 0.5e9}]}}})");
  REQUIRE_OK(p.status());
  CHECK(p->ExpertNs(1000, 1) == Approx(1000));
  CHECK(p->ExpertNs(1000, 1, "bf16") == Approx(1000));
  CHECK(p->ExpertNs(1000, 1, "w4") == Approx(2000));
}

TEST_CASE("a CPU beside a device: by rate and share, or as measured of a version") {
  auto p = Load(R"({"cpu_weight_bytes_per_s": 1e9, "cpu_expert_latency_ns": 7, "request_rule_ns": 9,
                    "cpu_next_token_share": 0.5,
                    "cpu_compute": {"w4": {"compute": [
                        {"tokens": 1, "weight_bytes_per_s": 0.5e9},
                        {"tokens": 3, "weight_bytes_per_s": 0.25e9}]}}})");
  REQUIRE_OK(p.status());
  CHECK(p->request_rule_ns == 9);
  CHECK(p->CpuExpertNs(1000, 1) == 1007);
  CHECK(p->CpuExpertNs(1000, 3) == 2007);
  CHECK(p->CpuExpertNs(1000, 3, "bf16") == 2007);
  CHECK(p->CpuExpertNs(1000, 1, "w4") == 2007);
  CHECK(p->CpuExpertNs(1000, 2, "w4") == 3007);
  CHECK(p->CpuExpertNs(1000, 6, "w4") == 8007);
}

TEST_CASE("times at the slowest rates that are legal are long, not negative") {
  const auto p = Load(R"({"link_bytes_per_s": 1, "cpu_weight_bytes_per_s": 1})");
  REQUIRE_OK(p.status());
  constexpr int64_t kBytes = int64_t{1} << 40;
  CHECK(p->TransferNs(kBytes) == p->link_latency_ns + 1'000'000'000'000'000);
  CHECK(p->CpuExpertNs(kBytes, 1000) == p->cpu_expert_latency_ns + 1'000'000'000'000'000);
  CHECK(p->TransferNs(1000) == p->link_latency_ns + 1'000'000'000'000);
}

TEST_CASE("the shipped profile of an H200 loads") {
  const auto p = LoadProfile(SourceDir() + "/tests/research/profiles/h200.json");
  REQUIRE_OK(p.status());
  CHECK(p->name == "h200");
  CHECK(p->link_bytes_per_s > 50e9);
  CHECK(p->cpu_executor);
  // The CPU reads the weights once for a few tokens, and is bound by arithmetic later.
  CHECK(p->CpuExpertNs(9 << 20, 4, "bf16") < 2 * p->CpuExpertNs(9 << 20, 1, "bf16"));
  CHECK(p->CpuExpertNs(9 << 20, 32, "bf16") > 4 * p->CpuExpertNs(9 << 20, 1, "bf16"));
  CHECK(p->CpuExpertNs(9 << 20, 1, "w4a16_g128") > p->CpuExpertNs(9 << 20, 1, "bf16"));
  // One pass over the weights costs less than an arrival of theirs, by far.
  CHECK(p->ExpertNs(9 << 20, 1) * 10 < static_cast<double>(p->TransferNs(9 << 20)));
  CHECK(p->ExpertNs(9 << 20, 64) > p->ExpertNs(9 << 20, 1));
}

TEST_CASE("a bad profile names the field") {
  using Catch::Contains;
  const auto error = [](const std::string& text) {
    return std::string(Load(text).status().message());
  };
  CHECK_THAT(error(R"({"compute": 3})"), Contains("'compute'"));
  CHECK_THAT(error(R"({"compute": [{"tokens": 1}]})"), Contains("weight_bytes_per_s"));
  CHECK_THAT(error(R"({"compute": [{"tokens": 0, "weight_bytes_per_s": 1}]})"), Contains("tokens"));
  CHECK_THAT(error(R"({"compute": [{"tokens": 4, "weight_bytes_per_s": 1},
                                   {"tokens": 4, "weight_bytes_per_s": 2}]})"),
             Contains("ascend"));
  CHECK_THAT(error(R"({"link_bytes_per_s": -1})"), Contains("link_bytes_per_s"));
  CHECK_THAT(error(R"({"link_streams": 0})"), Contains("link_streams"));
  CHECK_THAT(error(R"({"file_bytes_per_s": 0})"), Contains("file_bytes_per_s"));
  CHECK_THAT(error(R"({"version_compute": [1]})"), Contains("version_compute"));
  CHECK_THAT(error(R"({"version_compute": {"w4": {"compute": 1}}})"), Contains("'compute'"));
  CHECK_THAT(error(R"({"cpu_compute": {"w4": 1}})"), Contains("cpu_compute"));
}

}  // namespace
}  // namespace moert
