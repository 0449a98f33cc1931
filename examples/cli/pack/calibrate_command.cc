#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "examples/cli/common/args.h"
#include "examples/cli/common/progress.h"
#include "examples/cli/pack/calibrate_job.h"
#include "examples/cli/pack/commands.h"
#include "examples/cli/pack/quantize_job.h"

namespace moert::cli {
namespace {

constexpr char kCommand[] = "moert-pack calibrate";
constexpr char kSchemes[] =
    "w8a16_g128,w4a16_g128_asym,w4a16_g-1_asym,w3a16_g128_asym,w3a16_g-1_asym,w2a16_g64_asym,"
    "w2a16_g128_asym,w2a16_g-1_asym";

absl::Status Run(CalibrateJob* job, const std::string& schemes, bool quiet) {
  MOERT_ASSIGN_OR_RETURN(job->settings.schemes, ParseSchemes(schemes));
  MOERT_ASSIGN_OR_RETURN(job->settings.method, ParseMethod(job->method));
  Progress progress("calibrating experts", !quiet);
  job->progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  if (!quiet) job->log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const absl::Status status = RunCalibrateJob(*job);
  std::error_code ec;
  if (!status.ok() && !quiet && std::filesystem::exists(job->out + ".partial", ec)) {
    fmt::print(stderr,
               "note: completed layers are kept in {}.partial; the same command goes on after "
               "them\n",
               job->out);
  }
  return status;
}

}  // namespace

int CalibrateMain(int argc, const char* const* argv) {
  CalibrateJob job;
  std::string schemes = kSchemes, tokens;
  bool quiet = false;
  ArgParser parser(kCommand,
                   "Runs a model over calibration tokens and records how often each expert is "
                   "used and what each scheme would cost each of its linear blocks. An "
                   "interrupted run is gone on with by the same command.");
  parser.AddString("model", &job.model, "directory of a Hugging Face checkpoint");
  parser.Require("model");
  parser.AddString("tokens", &tokens, "comma-separated files of calibration tokens");
  parser.Require("tokens");
  parser.AddString("out", &job.out, "the calibration file to write");
  parser.Require("out");
  parser.AddString("schemes", &schemes, "comma-separated candidates");
  parser.AddChoice("method", &job.method, {"rtn", "hqq", "gptq"}, "what quantizes the candidates");
  parser.AddSwitch("hadamard", &job.settings.hadamard, "in the block Hadamard domain");
  parser.AddInt64("calibration-tokens", &job.tokens, "tokens used of those files together; 0: all",
                  0);
  parser.AddInt64("probe-tokens", &job.probe_tokens,
                  "tokens over which the whole model's loss by each layer's errors is measured; "
                  "0: not at all",
                  0);
  parser.AddInt64("window", &job.window, "tokens a calibration sequence", 2, int64_t{1} << 20);
  parser.AddInt("threads", &job.threads, "threads; 0: one a core", 0, 1024);
  parser.AddChoice("backend", &job.backend, {"cpu", "cuda", "auto"},
                   "where matrices are multiplied; quantizing is the CPU's");
  parser.AddSwitch("quiet", &quiet, "no progress, no notes");
  const absl::Status parsed = parser.Parse(argc, argv);
  if (!parsed.ok()) return ReportError(kCommand, parsed);
  if (parser.help_requested()) {
    fmt::print("{}", parser.Help());
    return kExitOk;
  }
  job.token_files = absl::StrSplit(tokens, ',');
  const absl::Status status = Run(&job, schemes, quiet);
  return status.ok() ? kExitOk : ReportError(kCommand, status);
}

}  // namespace moert::cli
