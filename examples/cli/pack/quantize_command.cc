#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "cli/common/args.h"
#include "cli/common/interrupt.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/pack/commands.h"
#include "cli/pack/host_model.h"
#include "moert/offline/pack.h"
#include "moert/offline/quantize.h"
#include "util/bytes_text.h"
#include "util/folder_names.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kQuantize[] = "moert-pack quantize";

// --force replaces a pack, and nothing else.
absl::Status RemovePack(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return absl::OkStatus();
  if (!std::filesystem::exists(path + "/" + kManifestFile, ec)) {
    return absl::InvalidArgumentError(
        fmt::format("--out: {} is no expert pack; --force replaces nothing else", path));
  }
  // A pack has no folders in it.
  for (const std::string& name : util::FolderNames(path)) {
    std::filesystem::remove(path + "/" + name, ec);
  }
  std::filesystem::remove(path, ec);
  if (!ec) return absl::OkStatus();
  return absl::PermissionDeniedError(fmt::format("{}: {}", path, ec.message()));
}

absl::Status RunQuantize(QuantizeJob* job, const std::string& schemes, const std::string& method,
                         const std::string& backend, bool quiet) {
  MOERT_ASSIGN_OR_RETURN(job->method, ParseQuantMethod(method));
  if (job->method == QuantMethod::kGptq && job->token_files.empty()) {
    return absl::InvalidArgumentError(
        "method gptq needs calibration tokens: give --tokens FILE[,FILE...]");
  }
  std::unique_ptr<host::DeviceProducts> device;
  if (job->method == QuantMethod::kGptq) {
    std::string note;
    MOERT_ASSIGN_OR_RETURN(device, OpenProducts(backend, job->threads, &note));
    if (!quiet && !note.empty()) Print(stderr, "{}\n", note);
  }
  job->open_model = HostModelOpener(device.get());
  job->read_tokens = HostTokenReader(job->model);
  if (!schemes.empty()) {
    MOERT_ASSIGN_OR_RETURN(job->schemes, ParseSchemes(schemes));
  } else if (job->plans.empty()) {
    return absl::InvalidArgumentError("--schemes or --plan must be given");
  }
  Progress progress("quantizing matrices", !quiet);
  job->progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  if (!quiet) job->log = [](const std::string& line) { Print(stderr, "{}\n", line); };
  job->cancelled = Interrupted;
  const CatchInterrupts catching;
  const absl::Status status = RunQuantizeJob(*job);
  if (device != nullptr && !quiet) NoteRefusals(*device);
  std::error_code ec;
  if (!status.ok() && !quiet && std::filesystem::exists(job->out + ".partial", ec)) {
    Print(stderr,
          "note: completed layers are kept in {}.partial; the same command "
          "continues after them\n",
          job->out);
  }
  return status;
}

// Reports the pack that was written, for people and as JSON.
absl::Status Report(const QuantizeJob& job, double seconds, bool quiet, const std::string& json) {
  MOERT_ASSIGN_OR_RETURN(const PackInfo pack, ReadPackInfo(job.out));
  nlohmann::json versions = nlohmann::json::array();
  std::string text;
  for (const PackVersion& version : pack.versions) {
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(pack.model, version));
    versions.push_back(
        {{"name", version.name}, {"bytes", size.bytes}, {"stored_bits", size.stored_bits()}});
    text += fmt::format("  {:<20} {:.3f} bits a weight, {}\n", version.name, size.stored_bits(),
                        util::BytesText(size.bytes));
  }
  if (!quiet) {
    Print("{}: {} experts, {} in {} files, {:.0f} s\n{}", job.out, pack.model.total_experts(),
          util::BytesText(pack.bytes), pack.num_files, seconds, text);
  }
  if (json.empty()) return absl::OkStatus();
  return WriteJson(json, {{"out", job.out},
                          {"bytes", pack.bytes},
                          {"files", pack.num_files},
                          {"seconds", seconds},
                          {"versions", std::move(versions)}});
}

}  // namespace

int QuantizeMain(int argc, const char* const* argv) {
  QuantizeJob job;
  std::string schemes, plans, tokens, method = "rtn", backend = "auto", json;
  bool quiet = false;
  ArgParser parser(kQuantize,
                   "Writes an expert pack: every routed expert in each of some schemes. Routers "
                   "and shared experts stay as they are. After an interruption, the same command "
                   "continues.");
  parser.AddString("model", &job.model, "directory of a Hugging Face checkpoint");
  parser.Require("model");
  parser.AddOutput("out", &job.out, "the pack to write, a directory that does not exist");
  parser.Require("out");
  parser.AddString("schemes", &schemes, "comma-separated schemes, e.g. bf16,w4a16_g128");
  parser.AddString("plan", &plans,
                   "comma-separated plans of `moert-pack allocate`, a version each");
  parser.AddChoice("method", &method, {"rtn", "hqq", "gptq"},
                   "rounding to nearest, half-quadratic, or GPTQ, which needs --tokens");
  parser.AddSwitch("hadamard", &job.hadamard,
                   "transforms weights, and at run time activations, by block Hadamard matrices");
  parser.AddString(
      "tokens", &tokens,
      "comma-separated calibration texts, or files of token ids, *.u16 or *.u32 (gptq)");
  parser.AddInt64("calibration-tokens", &job.calibration_tokens,
                  "tokens used of those files together; 0: all", 0);
  parser.AddInt64("window", &job.window, "tokens a calibration sequence", 2, int64_t{1} << 20);
  parser.AddInt("threads", &job.threads, "threads; 0: one a core", 0, 1024);
  parser.AddChoice("backend", &backend, {"cpu", "cuda", "auto"},
                   "where scales are searched for, with the same outcome, and where the experts of "
                   "calibration tokens are multiplied (gptq)");
  parser.AddJson(&json);
  parser.AddQuiet(&quiet, "progress, no notes, no summary");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  if (parser.Given("tokens")) job.token_files = absl::StrSplit(tokens, ',');
  job.backend = BackendOf(backend);
  if (parser.Given("plan")) job.plans = absl::StrSplit(plans, ',');
  if (parser.force()) {
    const absl::Status removed = RemovePack(job.out);
    if (!removed.ok()) return ReportError(kQuantize, removed);
  }
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status = RunQuantize(&job, schemes, method, backend, quiet);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (status.ok()) status = Report(job, took.count(), quiet, json);
  return status.ok() ? kExitOk : ReportError(kQuantize, status);
}

}  // namespace moert::cli
