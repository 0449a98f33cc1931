// Writing an expert pack of a checkpoint: streaming, on several threads, resumable.
#ifndef MOERT_OFFLINE_QUANTIZE_H_
#define MOERT_OFFLINE_QUANTIZE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "moert/backend.h"
#include "moert/offline/calibration_model.h"
#include "moert/offline/pack.h"
#include "moert/offline/token_file.h"
#include "moert/scheme.h"

namespace moert {

/// How a matrix is rounded (docs/results/quantization.md compares them).
enum class QuantMethod {
  kRtn,   // to nearest, with the clipping that loses least
  kHqq,   // half-quadratic quantization: no calibration needed
  kGptq,  // by the second moments of the inputs, from calibration tokens
};
/// "rtn", "hqq", "gptq".
absl::StatusOr<QuantMethod> ParseQuantMethod(absl::string_view name);
absl::string_view QuantMethodName(QuantMethod method);

struct QuantizeJob {
  std::string model = {};                  // directory of a Hugging Face checkpoint
  std::string out = {};                    // the pack to write, a directory that does not exist
  std::vector<Scheme> schemes = {};        // distinct, any order
  std::vector<std::string> plans = {};     // files of plans (moert/offline/plan.h): a version each
  std::vector<PackVersion> versions = {};  // further versions, as in a plan
  QuantMethod method = QuantMethod::kRtn;
  /// Weights of all schemes but bf16 are stored in the block Hadamard domain
  /// (docs/reference/layout.md). Plans say it themselves.
  bool hadamard = false;
  // kGptq only: files of calibration tokens (moert/offline/token_file.h), how many of these tokens
  // are used (0: all), tokens per sequence, and the function that opens the rest of the model.
  std::vector<std::string> token_files = {};
  TokenReader read_tokens = {};  // null: ReadTokenFile
  int64_t calibration_tokens = 65536;
  int64_t window = 512;
  OpenCalibrationModel open_model = {};
  int threads = 0;  // 0: one a core
  /// Only the owner may read the pack: folder 0700, files 0600. Else as the umask says.
  bool owner_only = false;
  /// The backend that searches for scales; the outcome is the same to the bit. kCuda fails without
  /// a device.
  BackendKind backend = BackendKind::kAuto;
  /// Matrices done and to do, those of layers that an earlier run completed included. May be null.
  std::function<void(int64_t done, int64_t total)> progress = {};
  /// A line for people. May be null.
  std::function<void(const std::string& line)> log = {};
  /// Asked between pieces of work, which take well under a second; with kGptq before each expert
  /// and from several threads. True ends the job with Cancelled and leaves the same files as any
  /// interruption. May be null.
  std::function<bool()> cancelled = {};
};

/// Writes job.out. An interrupted job leaves `<out>.partial` with the layers it completed; the same
/// job, run again, continues after them. Errors name file, layer and expert.
absl::Status RunQuantizeJob(const QuantizeJob& job);

/// "w4a16_g128,bf16": distinct schemes; the error names the one that is not.
absl::StatusOr<std::vector<Scheme>> ParseSchemes(absl::string_view list);

}  // namespace moert

#endif  // MOERT_OFFLINE_QUANTIZE_H_
