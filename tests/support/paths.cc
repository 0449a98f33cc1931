#include "support/paths.h"

namespace moert {

std::string SourceDir() { return MOERT_SOURCE_DIR; }
std::string BinDir() { return MOERT_BIN_DIR; }
std::string LabDir() { return MOERT_LAB_DIR; }

}  // namespace moert
