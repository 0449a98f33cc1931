#include "cli/run/run_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "cli/common/budget_flag.h"
#include "cli/common/promise_flag.h"
#include "cli/common/strategy_names.h"
#include "util/status_macros.h"

namespace moert::cli {

void AddRunFlags(ArgParser* parser, RunOptions* o) {
  parser->AddString("model", &o->model, "directory of a Hugging Face checkpoint");
  parser->Require("model");
  parser->AddString("experts", &o->experts,
                    "expert pack to use instead of the checkpoint's experts");
  parser->AddString("as", &o->as,
                    "opens the experts as these schemes, comma-separated, through a pack that is "
                    "quantized once into the cache: w4a16_g128");
  parser->AddSwitch("pack", &o->pack,
                    "writes a pack of the experts into the cache, once, instead of reading "
                    "them in place");
  parser->AddString("strategy", &o->strategy, "offloading strategy, name[:key=value,...]");
  parser->Suggest("strategy", StrategyNames());
  AddPromise(parser, &o->promise);
  parser->AddString("budget", &o->budget,
                    "memory for experts: 512MiB, 8GiB (everything), or 25% of the experts");
  parser->AddString("host-budget", &o->host_budget,
                    "cuda: pinned memory for experts, SIZE or PERCENT of theirs; all: for each");
  parser->AddChoice("backend", &o->backend, {"cpu", "cuda", "auto"}, "where experts execute");
  parser->AddInt("threads", &o->threads, "compute threads; 0: one a core", 0, 1024);
  parser->AddDouble("link-gbps", &o->link_gbps, "paces transfers to this rate, GB/s");
  parser->AddChoice("clock", &o->clock, {"wall", "virtual"},
                    "virtual: logical times, reproducible");
  parser->AddString("profile", &o->profile,
                    "hardware profile: reference, or a file of moert-bench");
  parser->AddString("cache", &o->cache, "folder of cached packs");
  parser->AddInt64("seed", &o->seed, "seed of sampling", 0);
  parser->AddChoice("dtype", &o->dtype, {"bf16", "f32", "int8", "fp8"},
                    "activations of the experts; the rest of the model computes in f32");
  parser->AddString("kernels", &o->kernels, "CPU kernel set: auto or a name");
  parser->AddChoice("graphs", &o->graphs, {"auto", "off"},
                    "cuda: decode steps as CUDA graphs where the strategy allows it, or never");
  parser->AddJson(&o->json);
  parser->AddOutput("trace", &o->trace,
                    "writes the routing trace to a file, and a timeline to FILE.perfetto.json");
  parser->AddString("warm", &o->warm,
                    "fills the fast tier from opening on: auto (by the last run's use), a file of "
                    "`moert-pack calibrate`, or off");
  parser->AddSwitch("live", &o->live, "a line of statistics on stderr, twice a second");
  parser->AddSwitch("quiet", &o->quiet, "no statistics table, no progress, no notes");
}

int64_t MaxPrefillRows(const RunOptions& o) {
  // A device reads every expert in each step; from some 2,048 tokens on arithmetic takes longer.
  return o.backend != "cpu" && CudaStatus().ok() ? 2048 : 512;
}

absl::StatusOr<EngineOptions> MakeEngineOptions(const RunOptions& o) {
  if (o.backend == "cuda") {
    const absl::Status cuda = CudaStatus();
    if (!cuda.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--backend cuda: ", cuda.message(), "; legal are cpu and auto"));
    }
  }
  if (!std::isfinite(o.link_gbps) || o.link_gbps < 0.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--link-gbps: ", o.link_gbps, " is not a rate; 0 or more, 0: not paced"));
  }
  EngineOptions e;
  const absl::StatusOr<Budget> budget = ParseBudget(o.budget);
  if (!budget.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--budget: ", budget.status().message()));
  }
  e.budget = *budget;
  e.strategy = o.strategy;
  MOERT_RETURN_IF_ERROR(SetPromise(o.promise, &e));
  e.backend = o.backend == "cuda"  ? BackendKind::kCuda
              : o.backend == "cpu" ? BackendKind::kCpu
                                   : BackendKind::kAuto;
  MOERT_RETURN_IF_ERROR(ParseHostBudget(o.host_budget, /*expert_bytes=*/0).status());
  e.activation = o.dtype == "f32"    ? ActivationNumerics::kF32
                 : o.dtype == "int8" ? ActivationNumerics::kInt8
                 : o.dtype == "fp8"  ? ActivationNumerics::kFp8
                                     : ActivationNumerics::kBF16;
  e.clock = o.clock == "virtual" ? ClockKind::kVirtual : ClockKind::kWall;
  MOERT_ASSIGN_OR_RETURN(e.profile, LoadProfile(o.profile));
  e.link_gbps = o.link_gbps;
  e.threads = o.threads;
  e.kernels = o.kernels;
  return e;
}

}  // namespace moert::cli
