// moert-run: generates text with a model, or scores token files, through libmoert.
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "cli/common/args.h"
#include "cli/common/guarded_main.h"
#include "cli/run/commands.h"

namespace {

constexpr char kUsage[] =
    "usage: moert-run generate --model DIR (--prompt TEXT | --prompt-file FILE) [flags]\n"
    "       moert-run ppl --model DIR --tokens FILE.u16 [flags]\n"
    "       moert-run COMMAND --help\n";

int Run(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "generate") return moert::cli::GenerateMain(argc - 2, argv + 2);
  if (command == "ppl") return moert::cli::PplMain(argc - 2, argv + 2);
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kUsage);
    return moert::cli::kExitOk;
  }
  if (command == "--version") {
    fmt::print("moert-run {}\n", MOERT_VERSION);
    return moert::cli::kExitOk;
  }
  if (!command.empty()) {
    fmt::print(stderr, "moert-run: '{}' is not a command; legal are generate and ppl\n", command);
  }
  fmt::print(stderr, "{}", kUsage);
  return moert::cli::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) { return moert::cli::GuardedMain("moert-run", Run, argc, argv); }
