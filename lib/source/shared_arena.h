// Memory shared by several processes of a machine: a file in a memory file system that the first of
// them fills while the others wait. Locks on the file show which processes are attached; the system
// releases the locks of a process that dies.
#ifndef MOERT_LIB_SOURCE_SHARED_ARENA_H_
#define MOERT_LIB_SOURCE_SHARED_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/descriptor.h"

namespace moert {

struct ArenaOptions {
  std::string path;
  int64_t bytes = 0;
  uint64_t contents = 0;  // what is in it: processes that disagree are refused
  int processes = 1;      // when so many are there the file loses its name
  int64_t timeout_ns = 0;
  /// Called while another process fills the memory: false gives up. May be null.
  std::function<bool(int64_t done_bytes)> waiting = {};
};

class SharedArena {
 public:
  /// Waits for the process that fills the memory. DeadlineExceeded, Cancelled, FailedPrecondition
  /// if it holds other contents, ResourceExhausted if there is not enough memory.
  static absl::StatusOr<std::unique_ptr<SharedArena>> Open(const ArenaOptions& options);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// False: this process has to fill the memory and then call Publish. If it goes earlier, another
  /// process takes over.
  bool filled() const { return filled_; }
  std::byte* data() const;
  int64_t bytes() const { return o_.bytes; }

  void NoteDone(int64_t bytes);
  absl::Status Publish();

 private:
  struct Header;

  explicit SharedArena(const ArenaOptions& options) : o_(options) {}

  absl::Status OpenFile();
  absl::Status LockToAttach();
  absl::StatusOr<bool> Attach();
  absl::Status Map();
  absl::Status Fresh();
  absl::Status CheckHeader() const;
  int64_t DoneBytes() const;
  bool Named() const;
  absl::Status CountIn();

  const ArenaOptions o_;
  Descriptor file_;
  Header* header_ = nullptr;  // mapped, the data behind it
  int64_t mapped_ = 0;
  bool filled_ = false;
};

}  // namespace moert

#endif  // MOERT_LIB_SOURCE_SHARED_ARENA_H_
