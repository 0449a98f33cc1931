// The subcommands of moert-bench. Each gets argv from its own name on and returns the exit status.
#ifndef MOERT_EXAMPLES_CLI_BENCH_BENCH_H_
#define MOERT_EXAMPLES_CLI_BENCH_BENCH_H_

namespace moert::cli {

/// Times expert products alone, per kernel set and number of tokens.
int BenchGemm(int argc, const char* const* argv);
/// The rates of this machine, as a HardwareProfile.
int BenchProbe(int argc, const char* const* argv);
/// Compares strategies: decode steps, prefill steps, layer calls.
int BenchDecode(int argc, const char* const* argv);
int BenchPrefill(int argc, const char* const* argv);
int BenchLayer(int argc, const char* const* argv);
/// Times the whole example decoder on a device.
int BenchModel(int argc, const char* const* argv);
/// Compares an expert-parallel group with one engine.
int BenchRanks(int argc, const char* const* argv);
/// Statistics of a workload's routing.
int BenchWorkload(int argc, const char* const* argv);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_BENCH_H_
