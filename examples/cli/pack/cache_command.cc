#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cli/common/args.h"
#include "cli/common/interrupt.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/pack/commands.h"
#include "moert/offline/open_as.h"
#include "moert/offline/quantize.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kCache[] = "moert-pack cache";

struct CacheArguments {
  std::string model, schemes, method = "rtn", json;
  OpenAsOptions options;
  bool quiet = false;
};

absl::StatusOr<std::string> Find(CacheArguments* a) {
  MOERT_ASSIGN_OR_RETURN(a->options.schemes, ParseSchemes(a->schemes));
  MOERT_ASSIGN_OR_RETURN(a->options.method, ParseQuantMethod(a->method));
  Progress progress("quantizing matrices", !a->quiet);
  a->options.progress = [&](int64_t done, int64_t total) { progress.Update(done, total); };
  if (!a->quiet) a->options.log = [](const std::string& line) { Print(stderr, "{}\n", line); };
  a->options.cancelled = Interrupted;
  const CatchInterrupts catching;
  return CachedPack(a->model, a->options);
}

}  // namespace

int CacheMain(int argc, const char* const* argv) {
  CacheArguments a;
  ArgParser parser(kCache,
                   "Prints the folder of the pack that moert-run --as and the Python package use "
                   "for a checkpoint. Writes it first if it is not there.");
  parser.AddString("model", &a.model, "directory of a Hugging Face checkpoint");
  parser.Require("model");
  parser.AddString("schemes", &a.schemes, "comma-separated schemes, e.g. bf16,w4a16_g128");
  parser.Require("schemes");
  parser.AddChoice("method", &a.method, {"rtn", "hqq"}, "rounding to nearest, or half-quadratic");
  parser.AddString("cache", &a.options.cache_dir, "folder of cached packs");
  parser.AddInt("threads", &a.options.threads, "threads; 0: one a core", 0, 1024);
  parser.AddJson(&a.json);
  parser.AddQuiet(&a.quiet, "progress, no notes");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::StatusOr<std::string> pack = Find(&a);
  if (!pack.ok()) return ReportError(kCache, pack.status());
  if (!a.json.empty()) {
    const absl::Status written = WriteJson(a.json, {{"pack", *pack}});
    if (!written.ok()) return ReportError(kCache, written);
  }
  if (a.json != "-") Print("{}\n", *pack);
  return kExitOk;
}

}  // namespace moert::cli
