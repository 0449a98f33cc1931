#include "cli/bench/commit.h"

#include "moert_commit.h"  // written by the build

namespace moert::cli {

const char* BuildCommit() { return MOERT_COMMIT; }

}  // namespace moert::cli
