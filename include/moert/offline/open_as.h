// Opening a checkpoint with its experts in other schemes than it has itself.
#ifndef MOERT_OFFLINE_OPEN_AS_H_
#define MOERT_OFFLINE_OPEN_AS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "moert/offline/pack.h"
#include "moert/offline/quantize.h"
#include "moert/scheme.h"
#include "moert/source/expert_source.h"

namespace moert {

struct OpenAsOptions {
  std::vector<Scheme> schemes = {};  // distinct, any order; a version each
  /// Further versions, a scheme a linear block, as Allocate returns them. Names are their own.
  std::vector<PackVersion> plans = {};
  /// kRtn or kHqq: the methods that need no calibration.
  QuantMethod method = QuantMethod::kRtn;
  std::string cache_dir = {};  // empty: the user's cache folder, as for OpenModel
  int threads = 0;             // 0: one a core
  std::function<void(int64_t done, int64_t total)> progress = {};  // matrices; may be null
  std::function<void(const std::string& line)> log = {};           // for people; may be null
  std::function<bool()> cancelled = {};                            // as QuantizeJob::cancelled
};

/// The folder of the checkpoint's pack of these versions in the cache folder; the same arguments
/// give the same folder. The pack is quantized on the first call, straight from the checkpoint, and
/// keeps what an interrupted call completed. Waits if another process or thread is writing it.
/// InvalidArgument for no version, a scheme given twice, and gptq; else like RunQuantizeJob.
absl::StatusOr<std::string> CachedPack(const std::string& model_dir, const OpenAsOptions& options);

/// Opens an HF checkpoint through CachedPack. Fails like that and OpenExpertPack.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenModelAs(const std::string& model_dir,
                                                          const OpenAsOptions& options);

}  // namespace moert

#endif  // MOERT_OFFLINE_OPEN_AS_H_
