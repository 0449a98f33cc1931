#include <fmt/format.h>

#include "cli/bench/bench.h"
#include "cli/bench/commit.h"
#include "cli/bench/decoder_bench.h"
#include "cli/common/args.h"
#include "cli/common/output.h"
#include "cli/common/report.h"
#include "util/status_macros.h"

namespace moert::cli {

namespace {

void Show(const nlohmann::json& result) {
  for (const auto& row : result["decode"]) {
    Print("decode, batch {}, context {}: {:.3f} ms a step ({:.3f} to {:.3f}), {:.0f} tokens/s\n",
          row["batch"].get<int>(), row["context"].get<int>(),
          row["step_ms"]["median"].get<double>(), row["step_ms"]["min"].get<double>(),
          row["step_ms"]["max"].get<double>(), row["tokens_per_s"].get<double>());
  }
  for (const auto& row : result["prompts"]) {
    Print("prompt of {}: {:.2f} ms ({:.2f} to {:.2f}), {:.0f} tokens/s\n", row["tokens"].get<int>(),
          row["ms"]["median"].get<double>(), row["ms"]["min"].get<double>(),
          row["ms"]["max"].get<double>(), row["tokens_per_s"].get<double>());
  }
}

absl::Status Run(const DecoderBenchOptions& options, const std::string& command) {
  MOERT_ASSIGN_OR_RETURN(nlohmann::json result, RunDecoderBench(options));
  result["command"] = command;
  result["commit"] = BuildCommit();
  result["machine"] = DescribeMachine();
  if (!options.quiet) Show(result);
  return options.json.empty() ? absl::OkStatus() : WriteJson(options.json, result);
}

}  // namespace

int BenchModel(int argc, const char* const* argv) {
  DecoderBenchOptions o;
  const std::string name = "moert-bench model";
  ArgParser parser(name, "the whole example decoder on a device: decode steps and prompts");
  parser.AddString("synthetic", &o.synthetic, "a published model's shape: SHAPE[:layers]");
  parser.Require("synthetic");
  parser.AddString("schemes", &o.schemes, "stored versions, comma-separated, most bits first");
  parser.AddString("strategy", &o.strategy, "of the engine");
  parser.AddString("budget", &o.budget, "SIZE or PERCENT");
  parser.AddIntList("batch", &o.batch, "sequences side by side, comma-separated", 1);
  parser.AddInt64("context", &o.context, "tokens of each sequence before the first step", 1,
                  1 << 20);
  parser.AddIntList("prompt", &o.prompt, "tokens of a prompt, comma-separated", 1);
  parser.AddInt64("steps", &o.steps, "decode steps of a repetition", 1, 100000);
  parser.AddInt64("repeats", &o.repeats, "repetitions", 1, 10000);
  parser.AddSwitch("eager", &o.eager, "no CUDA graphs");
  parser.AddInt64("seed", &o.seed, "seed of weights and tokens", 0);
  parser.AddJson(&o.json);
  parser.AddSwitch("quiet", &o.quiet, "no table, no progress");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  const absl::Status status = Run(o, name + " " + CommandLine(argc, argv));
  return status.ok() ? kExitOk : ReportError(name, status);
}

}  // namespace moert::cli
