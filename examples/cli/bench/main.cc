// moert-bench: measures the parts of libmoert on this machine.
#include <fmt/format.h>

#include <cstring>

#include "cli/bench/bench.h"
#include "cli/common/args.h"
#include "cli/common/guarded_main.h"

namespace moert::cli {
namespace {

struct Subcommand {
  const char* name;
  const char* summary;
  int (*run)(int argc, const char* const* argv);
};

constexpr Subcommand kSubcommands[] = {
    {"gemm", "expert products: weight streaming and arithmetic rates of each kernel set",
     BenchGemm},
    {"probe", "the rates of this machine, for --profile", BenchProbe},
    {"layer", "MoE layers alone: time by tokens", BenchLayer},
    {"decode", "strategies against each other, decoding at a published model's shape", BenchDecode},
    {"prefill", "the same for prompts", BenchPrefill},
    {"workload", "what a workload's routing looks like, and workloads as traces", BenchWorkload},
};

int Usage(std::FILE* file) {
  fmt::print(file,
             "moert-bench: measures libmoert on this machine\n\nusage: moert-bench COMMAND "
             "[flags], moert-bench COMMAND --help\n");
  for (const Subcommand& s : kSubcommands) fmt::print(file, "  {:<8} {}\n", s.name, s.summary);
  return file == stdout ? kExitOk : kExitUsage;
}

int Main(int argc, const char* const* argv) {
  if (argc < 2) return Usage(stderr);
  if (std::strcmp(argv[1], "--help") == 0) return Usage(stdout);
  for (const Subcommand& s : kSubcommands) {
    if (std::strcmp(argv[1], s.name) == 0) return s.run(argc - 1, argv + 1);
  }
  fmt::print(stderr, "moert-bench: unknown command '{}'\n", argv[1]);
  return Usage(stderr);
}

}  // namespace
}  // namespace moert::cli

int main(int argc, char** argv) {
  return moert::cli::GuardedMain("moert-bench", moert::cli::Main, argc, argv);
}
