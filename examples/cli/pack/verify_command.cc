#include <fmt/format.h>

#include <cstdio>

#include "cli/common/args.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/pack/commands.h"
#include "moert/offline/pack.h"
#include "moert/thread_pool.h"
#include "util/bytes_text.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kVerify[] = "moert-pack verify";
constexpr size_t kShown = 20;

absl::StatusOr<PackVerification> Verify(const std::string& pack, int threads, bool quiet) {
  ThreadPoolOptions options;
  options.threads = threads;
  MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool(options));
  Progress progress("verifying records", !quiet);
  return VerifyPack(pack, Env::Default(), pool.get(),
                    [&](int64_t done, int64_t total) { progress.Update(done, total); });
}

}  // namespace

int VerifyMain(int argc, const char* const* argv) {
  std::string pack, json;
  int threads = 0;
  bool quiet = false;
  ArgParser parser(kVerify,
                   "Reads a whole expert pack and checks every byte of it. Exit status 1 and one "
                   "line for each damaged part if there is any.");
  parser.AddPositional("PACK", &pack, "an expert pack");
  parser.AddInt("threads", &threads, "threads; 0: one a core", 0, 1024);
  parser.AddJson(&json);
  parser.AddQuiet(&quiet, "progress, no summary");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::StatusOr<PackVerification> result = Verify(pack, threads, quiet);
  if (!result.ok()) return ReportError(kVerify, result.status());
  for (size_t i = 0; i < result->damage.size() && i < kShown; ++i) {
    Print(stderr, "{}: {}\n", kVerify, result->damage[i]);
  }
  if (result->damage.size() > kShown) {
    Print(stderr, "{}: and {} more\n", kVerify, result->damage.size() - kShown);
  }
  if (!json.empty()) {
    const absl::Status written = WriteJson(json, {{"pack", pack},
                                                  {"records", result->records},
                                                  {"bytes", result->bytes},
                                                  {"damage", result->damage}});
    if (!written.ok()) return ReportError(kVerify, written);
  }
  if (!result->damage.empty()) return kExitFailure;
  if (!quiet) {
    Print("{}: {} records and the constants are intact ({})\n", pack, result->records,
          util::BytesText(result->bytes));
  }
  return kExitOk;
}

}  // namespace moert::cli
