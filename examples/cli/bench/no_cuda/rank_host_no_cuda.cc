// A build without CUDA.
#include "cli/bench/rank_host.h"

namespace moert::cli {

absl::StatusOr<RankHosts> MakeCudaRanks(int /*ranks*/, bool /*alone*/) {
  return absl::UnavailableError("built without CUDA");
}

}  // namespace moert::cli
