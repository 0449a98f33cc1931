// moert-pack: makes expert packs, describes and checks them.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cli/common/args.h"
#include "cli/common/guarded_main.h"
#include "cli/pack/commands.h"

namespace {

constexpr char kUsage[] =
    "usage: moert-pack quantize --model DIR --out PACK (--schemes LIST | --plan PLAN) [flags]\n"
    "       moert-pack calibrate --model DIR --tokens FILE[,FILE] --out CALIB [--method M]\n"
    "       moert-pack allocate --calibration CALIB (--bits B | --budget SIZE) [--r R] --out PLAN\n"
    "       moert-pack info PACK|DIR|FILE [--json FILE|-]\n"
    "       moert-pack verify PACK\n"
    "       moert-pack COMMAND --help\n";

int Run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "quantize") return moert::cli::QuantizeMain(argc - 2, argv + 2);
  if (command == "calibrate") return moert::cli::CalibrateMain(argc - 2, argv + 2);
  if (command == "allocate") return moert::cli::AllocateMain(argc - 2, argv + 2);
  if (command == "info") return moert::cli::InfoMain(argc - 2, argv + 2);
  if (command == "verify") return moert::cli::VerifyMain(argc - 2, argv + 2);
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kUsage);
    return moert::cli::kExitOk;
  }
  if (command == "--version") {
    fmt::print("moert-pack {}\n", MOERT_VERSION);
    return moert::cli::kExitOk;
  }
  if (!command.empty()) {
    fmt::print(
        stderr,
        "moert-pack: '{}' is not a command; legal are quantize, calibrate, allocate, info and "
        "verify\n",
        command);
  }
  fmt::print(stderr, "{}", kUsage);
  return moert::cli::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) { return moert::cli::GuardedMain("moert-pack", Run, argc, argv); }
