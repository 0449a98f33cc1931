// moert-pack: makes expert packs, describes and checks them.
#include "cli/common/tool.h"
#include "cli/pack/commands.h"

namespace {

constexpr moert::cli::Command kCommands[] = {
    {"quantize", "writes a pack of a checkpoint's experts", moert::cli::QuantizeMain},
    {"cache", "writes a pack into the cache folder, once", moert::cli::CacheMain},
    {"calibrate", "measures what each scheme costs each expert", moert::cli::CalibrateMain},
    {"allocate", "chooses a scheme for each matrix", moert::cli::AllocateMain},
    {"info", "describes a pack, a checkpoint or a file", moert::cli::InfoMain},
    {"verify", "checks every byte of a pack", moert::cli::VerifyMain}};

}  // namespace

int main(int argc, char** argv) {
  return moert::cli::RunTool({"moert-pack", "makes, describes and checks expert packs", kCommands},
                             argc, argv);
}
