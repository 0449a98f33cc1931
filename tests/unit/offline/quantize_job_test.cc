// Quantizing a checkpoint without calibration: what it refuses.
#include <string>

#include "moert/offline/quantize.h"
#include "support/catch.h"
#include "support/edit_checkpoint.h"
#include "support/temp_dir.h"
#include "support/tiny_model.h"

namespace moert {
namespace {

TEST_CASE("a weight that is not finite is refused where it is, rotated or not") {
  test::EditCheckpoint tensors = test::ReadForEdit(TinyModelDir());
  const std::string name = "model.layers.1.mlp.experts.2.up_proj.weight";
  REQUIRE(tensors.count(name) == 1);
  const bool nan = GENERATE(false, true);
  const uint16_t bits = nan ? 0x7fc1 : 0xff80;
  std::memcpy(&tensors[name].bytes[2 * 77], &bits, 2);
  const test::TempDir dir;
  test::WriteFile(dir / "model.safetensors", test::ToSafetensors(tensors));
  test::WriteFile(dir / "config.json", ReadWholeFile(TinyModelDir() + "/config.json"));
  QuantizeJob job;
  job.model = dir.path();
  job.out = dir / "pack";
  job.schemes = {*Scheme::Parse("w4a16_g32")};
  job.method = GENERATE(QuantMethod::kRtn, QuantMethod::kHqq);
  job.hadamard = GENERATE(false, true);
  INFO("nan " << nan << ", hadamard " << job.hadamard);
  const absl::Status status = RunQuantizeJob(job);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(std::string(status.message()) ==
        job.model + ": layer 1, expert 2: up: a weight is not finite");
}

TEST_CASE("a device that is not there is an error only where it is asked for") {
  if (CudaStatus().ok()) return;  // tests/gpu covers machines with one
  const test::TempDir dir;
  QuantizeJob job;
  job.model = TinyModelDir();
  job.out = dir / "pack";
  job.schemes = {*Scheme::Parse("w4a16_g128")};
  job.backend = BackendKind::kCuda;
  const absl::Status status = RunQuantizeJob(job);
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(std::string(status.message()),
             Catch::StartsWith("backend cuda: ") && Catch::Contains("legal are cpu and auto"));
  job.backend = BackendKind::kAuto;
  REQUIRE_OK(RunQuantizeJob(job));
}

}  // namespace
}  // namespace moert
