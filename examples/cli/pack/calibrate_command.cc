#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_split.h"
#include "cli/common/args.h"
#include "cli/common/interrupt.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/pack/commands.h"
#include "cli/pack/host_model.h"
#include "moert/offline/calibrate.h"
#include "moert/offline/calibration.h"
#include "moert/tools/env.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kCalibrate[] = "moert-pack calibrate";
constexpr char kSchemes[] =
    "w8a16_g128,w4a16_g128_asym,w4a16_g-1_asym,w3a16_g128_asym,w3a16_g-1_asym,w2a16_g64_asym,"
    "w2a16_g128_asym,w2a16_g-1_asym";

struct CalibrateArguments {
  CalibrateJob job;
  std::string schemes = kSchemes, tokens, method = "gptq", backend = "auto", json;
  bool quiet = false;
};

absl::Status RunCalibrate(CalibrateArguments* a) {
  CalibrateJob& job = a->job;
  const auto say = [&](const std::string& line) {
    if (!a->quiet && !line.empty()) Print(stderr, "{}\n", line);
  };
  job.token_files = absl::StrSplit(a->tokens, ',');
  job.read_tokens = HostTokenReader(job.model);
  MOERT_ASSIGN_OR_RETURN(job.schemes, ParseSchemes(a->schemes));
  MOERT_ASSIGN_OR_RETURN(job.method, ParseQuantMethod(a->method));
  job.backend = BackendOf(a->backend);
  std::string note;
  MOERT_ASSIGN_OR_RETURN(const auto device, OpenProducts(a->backend, job.threads, &note));
  say(note);
  job.open_model = HostModelOpener(device.get());
  Progress progress("calibrating experts", !a->quiet);
  job.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  job.log = say;
  job.cancelled = Interrupted;
  const CatchInterrupts catching;
  const absl::Status status = RunCalibrateJob(job);
  if (device != nullptr && !a->quiet) NoteRefusals(*device);
  std::error_code ec;
  if (!status.ok() && std::filesystem::exists(job.out + ".partial", ec)) {
    say(
        fmt::format("note: completed layers are kept in {}.partial; the same command continues "
                    "after them",
                    job.out));
  }
  return status;
}

absl::Status ReportCalibration(const CalibrateArguments& a) {
  if (a.json.empty()) return absl::OkStatus();
  MOERT_ASSIGN_OR_RETURN(const Calibration c, ReadCalibration(a.job.out, Env::Default()));
  return WriteJson(a.json, {{"out", a.job.out},
                            {"tokens", c.tokens},
                            {"probe_tokens", c.probe_tokens},
                            {"method", c.method}});
}

}  // namespace

int CalibrateMain(int argc, const char* const* argv) {
  CalibrateArguments a;
  CalibrateJob& job = a.job;
  ArgParser parser(kCalibrate,
                   "Runs a model over calibration tokens and records how often each expert is "
                   "used and what each scheme would cost each of its linear blocks. After an "
                   "interruption, the same command continues.");
  parser.AddString("model", &job.model, "directory of a Hugging Face checkpoint");
  parser.Require("model");
  parser.AddString("tokens", &a.tokens,
                   "comma-separated calibration texts, or files of token ids, *.u16 or *.u32");
  parser.Require("tokens");
  parser.AddOutput("out", &job.out, "the calibration file to write");
  parser.Require("out");
  parser.AddString("schemes", &a.schemes, "comma-separated candidates");
  parser.AddChoice("method", &a.method, {"rtn", "hqq", "gptq"}, "what quantizes the candidates");
  parser.AddSwitch("hadamard", &job.hadamard, "in the block Hadamard domain");
  parser.AddInt64("calibration-tokens", &job.tokens, "tokens used of those files together; 0: all",
                  0);
  parser.AddInt64("probe-tokens", &job.probe_tokens,
                  "tokens over which the whole model's loss by each layer's errors is measured; "
                  "0: not at all",
                  0);
  parser.AddInt64("window", &job.window, "tokens a calibration sequence", 2, int64_t{1} << 20);
  parser.AddInt("threads", &job.threads, "threads; 0: one a core", 0, 1024);
  parser.AddChoice("backend", &a.backend, {"cpu", "cuda", "auto"},
                   "where matrices are multiplied, and scales searched for");
  parser.AddJson(&a.json);
  parser.AddQuiet(&a.quiet, "progress, no notes");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  std::error_code ec;
  if (parser.force()) std::filesystem::remove(job.out, ec);
  absl::Status status = RunCalibrate(&a);
  if (status.ok()) status = ReportCalibration(a);
  return status.ok() ? kExitOk : ReportError(kCalibrate, status);
}

}  // namespace moert::cli
