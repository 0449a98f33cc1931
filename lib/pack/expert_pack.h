// Opens expert packs with a choice of how files are read. moert/source/expert_source.h has the
// usual function.
#ifndef MOERT_LIB_PACK_EXPERT_PACK_H_
#define MOERT_LIB_PACK_EXPERT_PACK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "moert/source/expert_source.h"
#include "moert/tools/env.h"

namespace moert {

struct ExpertPackOptions {
  Env* env = Env::Default();  // borrowed for the source's life
  /// Records bypass the page cache where the file system can: the budget then bounds all memory
  /// that experts take, and a read costs what the disk costs.
  bool direct_io = true;
  /// Not empty: DataLoss unless the pack was made from this checkpoint.
  std::string source_identity;
};

/// Opens all files and keeps them open: if the pack is replaced or removed meanwhile, the old
/// contents stay readable.
absl::StatusOr<std::unique_ptr<ExpertSource>> OpenExpertPack(const std::string& dir,
                                                             const ExpertPackOptions& options);

}  // namespace moert

#endif  // MOERT_LIB_PACK_EXPERT_PACK_H_
