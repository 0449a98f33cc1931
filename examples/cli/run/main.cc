// moert-run: generates text with a model, or scores token files, through libmoert.
#include "cli/common/tool.h"
#include "cli/run/commands.h"

namespace {

constexpr moert::cli::Command kCommands[] = {
    {"generate", "continues a prompt", moert::cli::GenerateMain},
    {"chat", "talks with a model", moert::cli::ChatMain},
    {"ppl", "scores text or token files", moert::cli::PplMain},
    {"list", "strategies, schemes, models, kernels", moert::cli::ListMain},
    {"doctor", "what this machine has, and what would be fastest on it", moert::cli::DoctorMain}};

}  // namespace

int main(int argc, char** argv) {
  return moert::cli::RunTool(
      {"moert-run", "runs Mixture-of-Experts models bigger than memory", kCommands}, argc, argv);
}
