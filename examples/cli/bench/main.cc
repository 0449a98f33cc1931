// moert-bench: measures the parts of libmoert on this machine.
#include "cli/bench/bench.h"
#include "cli/common/tool.h"

namespace moert::cli {
namespace {

constexpr Command kCommands[] = {
    {"gemm", "weight streaming and arithmetic rates of each kernel set", BenchGemm},
    {"probe", "the rates of this machine, for --profile", BenchProbe},
    {"layer", "MoE layers alone: time by tokens", BenchLayer},
    {"decode", "strategies against each other, at a published model's shape", BenchDecode},
    {"prefill", "the same for prompts", BenchPrefill},
    {"model", "the whole example decoder on a device, at a published model's shape", BenchModel},
    {"ranks", "experts dealt out over the GPUs of a machine, against one", BenchRanks},
    {"workload", "what a workload's routing looks like, and workloads as traces", BenchWorkload}};

}  // namespace
}  // namespace moert::cli

int main(int argc, char** argv) {
  return moert::cli::RunTool(
      {"moert-bench", "measures libmoert on this machine", moert::cli::kCommands}, argc, argv);
}
