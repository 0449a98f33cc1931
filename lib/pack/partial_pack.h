// The folder of a pack whose writing survives interruptions.
#ifndef MOERT_LIB_PACK_PARTIAL_PACK_H_
#define MOERT_LIB_PACK_PARTIAL_PACK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"
#include "base/file_writer.h"

namespace moert {

/// `<final>.partial` with `pack/` (the files in their final form), `journal` (which layers are
/// complete, and their checksums) and `lock`. A process that dies leaves it; the next process that
/// writes the same pack continues after the last complete layer. Not thread-safe.
class PartialPack {
 public:
  struct DoneLayer {
    std::vector<uint64_t> records;  // checksums in file order
    uint64_t constants = 0;
  };

  /// `job` identifies the pack to be written. FailedPrecondition if the folder holds another job's
  /// layers, or if another process is writing it. AlreadyExists if `final_path` exists. Folders get
  /// `mode` less the umask.
  static absl::StatusOr<std::unique_ptr<PartialPack>> Open(const std::string& final_path,
                                                           uint64_t job, int mode);

  /// Where the pack's files are written.
  std::string pack_path() const { return path_ + "/pack"; }
  const std::vector<DoneLayer>& done() const { return done_; }
  /// Records the next layer as complete. Its data must be on the disk already.
  absl::Status Append(const DoneLayer& layer);
  /// Renames the pack to its final name and removes the rest. AlreadyExists if the name is taken.
  absl::Status Commit();

 private:
  PartialPack(std::string path, std::string final_path, int mode, Descriptor lock)
      : path_(std::move(path)),
        final_path_(std::move(final_path)),
        mode_(mode),
        lock_(std::move(lock)) {}
  absl::Status ReadJournal(uint64_t job);
  absl::Status Begin(uint64_t job);

  const std::string path_;
  const std::string final_path_;
  const int mode_;
  const Descriptor lock_;
  std::unique_ptr<FileWriter> journal_;
  std::vector<DoneLayer> done_;
};

}  // namespace moert

#endif  // MOERT_LIB_PACK_PARTIAL_PACK_H_
