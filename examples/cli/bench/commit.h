// The commit that this program was built from.
#ifndef MOERT_EXAMPLES_CLI_BENCH_COMMIT_H_
#define MOERT_EXAMPLES_CLI_BENCH_COMMIT_H_

namespace moert::cli {

/// Abbreviated, with "-dirty" where files were changed; "unknown" outside a repository.
const char* BuildCommit();

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_BENCH_COMMIT_H_
