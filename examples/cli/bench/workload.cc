// moert-bench workload: what a workload's routing looks like, or a trace's; and workloads as
// traces, for moert-sim.
#include <fmt/format.h>

#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/common/any_trace.h"
#include "cli/common/args.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "cli/workload/facts.h"
#include "cli/workload/workload_trace.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

struct Options {
  std::string synthetic;
  std::string workload = "steady";
  std::string trace;
  std::string model;
  std::string out;
  std::string schemes = "bf16";
  int64_t steps = 200;
  int64_t batch = 1;
  int64_t prompt = 0;
  int64_t seed = 1;
  std::string json;
  bool quiet = false;
};

absl::StatusOr<std::unique_ptr<TraceReader>> Open(const Options& o) {
  if (o.synthetic.empty() == o.trace.empty()) {
    return absl::InvalidArgumentError("give --synthetic SHAPE[:layers] or --trace FILE");
  }
  if (!o.trace.empty()) return OpenAnyTrace(o.trace, o.model);
  MOERT_ASSIGN_OR_RETURN(const Shape shape, ParseShape(o.synthetic));
  StepPlan plan;
  plan.steps = o.steps;
  plan.batch = o.batch;
  if (o.prompt > 0) {
    plan.phase = Phase::kPrefill;
    plan.prompt_tokens = o.prompt;
  }
  return MakeWorkloadTrace(shape, o.workload, static_cast<uint64_t>(o.seed), plan,
                           absl::StrSplit(o.schemes, ','));
}

absl::Status WriteTrace(const Options& o, TraceReader* trace) {
  TraceHeader header = trace->header();
  header.strategy = "none";
  header.clock = "virtual";
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<TraceFile> file,
                         CreateTrace(o.out, header, Existing::kReplace));
  Progress progress("steps", !o.quiet);
  while (true) {
    MOERT_ASSIGN_OR_RETURN(const TraceCall* call, trace->Next());
    if (call == nullptr) break;
    file->OnCall(*call);
    progress.Update(call->step, o.steps);
  }
  return file->Close();
}

std::string Row(const std::vector<double>& values) {
  std::string text;
  for (size_t l = 1; l < values.size(); ++l) text += fmt::format(" {:.2f}", values[l]);
  return text;
}

absl::Status RunWorkload(const Options& o, const std::string& command) {
  MOERT_ASSIGN_OR_RETURN(const std::unique_ptr<TraceReader> trace, Open(o));
  if (!o.out.empty()) return WriteTrace(o, trace.get());
  MOERT_ASSIGN_OR_RETURN(const RoutingFacts f,
                         MeasureRouting(trace.get(), o.trace.empty() ? 0 : o.steps));
  if (!o.quiet) {
    Print("steps                        {}\n", f.steps);
    Print("experts a step uses          {:.1f} % of a layer's\n", 100 * f.density);
    Print("used by the token before     {:.1f} %\n", 100 * f.reuse);
    Print("LRU hits at 20, 40, 60 %     {:.1f} %, {:.1f} %, {:.1f} %\n", 100 * f.lru[0],
          100 * f.lru[1], 100 * f.lru[2]);
    Print("most used, over uniform      {:.2f}\n", f.most_used);
    Print("most used quarter            {:.1f} % of the use, entropy {:.3f}\n",
          100 * f.quarter_share, f.entropy);
    Print("best score, top k, (k+1)/1   {:.3f}, {:.3f}, {:.3f}\n", f.top_score, f.topk_mass,
          f.beta_over_top);
    Print("predicted top k              {:.1f} %, by layer:{}\n", 100 * f.mean_recall_topk,
          Row(f.recall_topk));
    Print("predicted best quarter       {:.1f} %, by layer:{}\n", 100 * f.mean_recall_quarter,
          Row(f.recall_quarter));
  }
  if (o.json.empty()) return absl::OkStatus();
  return WriteJson(o.json, {{"command", command},
                            {"source", trace->header().source},
                            {"workload", o.trace.empty() ? o.workload : "trace"},
                            {"seed", o.seed},
                            {"batch", o.batch},
                            {"prompt", o.prompt},
                            {"facts", ToJson(f)}});
}

}  // namespace

int BenchWorkload(int argc, const char* const* argv) {
  Options o;
  ArgParser parser("moert-bench workload",
                   "what routing looks like: of a workload, or of a recorded trace");
  parser.AddString("synthetic", &o.synthetic, "a published model's shape: SHAPE[:layers]");
  parser.AddChoice("workload", &o.workload, Workload::Names(), "hidden-state process");
  parser.AddString("trace", &o.trace, "a routing trace instead, or recorded routing");
  parser.AddString("model", &o.model, "checkpoint of recorded routing (*.safetensors)");
  parser.AddOutput("out", &o.out, "writes the workload as a routing trace, for moert-sim");
  parser.AddString("schemes", &o.schemes, "versions of the experts in that trace, most bits first");
  parser.AddInt64("steps", &o.steps, "steps", 1);
  parser.AddInt64("batch", &o.batch, "requests side by side", 1, 65536);
  parser.AddInt64("prompt", &o.prompt, "prefill steps of prompts of so many tokens", 0, 65536);
  parser.AddInt64("seed", &o.seed, "seed", 0);
  parser.AddJson(&o.json);
  parser.AddSwitch("quiet", &o.quiet, "no table, no progress");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  absl::Status status;
  if (status.ok()) status = RunWorkload(o, "moert-bench workload " + CommandLine(argc, argv));
  return status.ok() ? kExitOk : ReportError("moert-bench workload", status);
}

}  // namespace moert::cli
