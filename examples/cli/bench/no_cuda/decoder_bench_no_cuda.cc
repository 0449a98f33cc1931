// A build without CUDA.
#include "cli/bench/decoder_bench.h"
#include "util/status_macros.h"

namespace moert::cli {

absl::StatusOr<nlohmann::json> RunDecoderBench(const DecoderBenchOptions& options) {
  MOERT_ASSIGN_OR_RETURN(const Shape shape, ParseShape(options.synthetic));
  MOERT_RETURN_IF_ERROR(DecoderConfig(shape).status());
  return absl::UnavailableError("built without CUDA");
}

}  // namespace moert::cli
