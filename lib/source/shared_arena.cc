#include "source/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <new>
#include <thread>

#include "base/errors.h"
#include "base/posix_error.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {
namespace {

constexpr uint64_t kMagic = 0x31306572616e6572;
constexpr int64_t kHeaderBytes = 4096;
// Two byte ranges of the file to lock: a process that attaches, fills or leaves holds the gate;
// every attached process shares the presence lock.
constexpr int64_t kGate = 0, kPresence = 1;

/// 0, or an errno: EAGAIN if others hold the lock. Locks belong to the open file description: other
/// threads and later descriptors of this process count as others.
int Lock(int fd, int64_t which, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = which;
  lock.l_len = 1;
  if (::fcntl(fd, F_OFD_SETLK, &lock) == 0) return 0;
  return errno == EACCES ? EAGAIN : errno;
}

bool OthersPresent(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kPresence;
  lock.l_len = 1;
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace

struct SharedArena::Header {
  uint64_t magic = kMagic;
  uint64_t contents = 0;
  int64_t bytes = 0;
  std::atomic<int64_t> done{0};
  std::atomic<int32_t> attached{0};
  std::atomic<int32_t> ready{0};
};

absl::StatusOr<std::unique_ptr<SharedArena>> SharedArena::Open(const ArenaOptions& options) {
  auto arena = std::unique_ptr<SharedArena>(new SharedArena(options));
  while (true) {
    MOERT_RETURN_IF_ERROR(arena->OpenFile());
    MOERT_RETURN_IF_ERROR(arena->LockToAttach());
    MOERT_ASSIGN_OR_RETURN(const bool attached, arena->Attach());
    if (attached) return arena;
  }
}

SharedArena::~SharedArena() {
  if (header_ != nullptr) ::munmap(header_, mapped_);
  if (file_.get() < 0) return;
  // The last process removes the name. A process that is attaching at this moment does so itself.
  const bool gate = Lock(file_.get(), kGate, F_WRLCK) == 0;  // or has it already
  Lock(file_.get(), kPresence, F_UNLCK);
  if (gate && !OthersPresent(file_.get()) && Named()) ::unlink(o_.path.c_str());
}

std::byte* SharedArena::data() const {
  return reinterpret_cast<std::byte*>(header_) + kHeaderBytes;
}

absl::Status SharedArena::OpenFile() {
  file_ = Descriptor(::open(o_.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file_.get() < 0) return PosixError(errno, o_.path);
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return PosixError(errno, o_.path);
  if (S_ISREG(status.st_mode) && status.st_uid == ::geteuid()) return absl::OkStatus();
  file_ = Descriptor();
  return absl::PermissionDeniedError(o_.path + ": is not a file of this user's");
}

int64_t SharedArena::DoneBytes() const {
  int64_t done = 0;
  const ssize_t got = ::pread(file_.get(), &done, sizeof(done), offsetof(Header, done));
  return got == static_cast<ssize_t>(sizeof(done)) ? done : 0;
}

absl::Status SharedArena::LockToAttach() {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    const int error = Lock(file_.get(), kGate, F_WRLCK);
    if (error == 0) return absl::OkStatus();
    absl::Status status;
    if (error != EAGAIN) {
      status = PosixError(error, o_.path + ": locking it");
    } else if (std::chrono::steady_clock::now() - begin > std::chrono::nanoseconds(o_.timeout_ns)) {
      status = DeadlineExceeded("{}: another process fills it, {} of {} bytes after {} ms", o_.path,
                                DoneBytes(), o_.bytes, o_.timeout_ns / 1'000'000);
    } else if (o_.waiting != nullptr && !o_.waiting(DoneBytes())) {
      status = absl::CancelledError(o_.path + ": waiting was cancelled");
    }
    if (!status.ok()) {
      file_ = Descriptor();  // nothing of it is ours
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Call it with the gate locked. False: the file has lost its name meanwhile; there may be another
/// one.
absl::StatusOr<bool> SharedArena::Attach() {
  if (!Named()) {
    file_ = Descriptor();
    return false;
  }
  filled_ = OthersPresent(file_.get());
  if (!filled_) MOERT_RETURN_IF_ERROR(Fresh());  // what a crash left there is not looked at
  MOERT_RETURN_IF_ERROR(Map());
  if (filled_) {
    MOERT_RETURN_IF_ERROR(CheckHeader());
  } else {
    new (header_) Header;
    header_->contents = o_.contents;
    header_->bytes = o_.bytes;
  }
  if (const int error = Lock(file_.get(), kPresence, F_RDLCK); error != 0) {
    return PosixError(error, o_.path + ": locking it");
  }
  if (filled_) MOERT_RETURN_IF_ERROR(CountIn());
  return true;
}

/// Allocates all of the memory now: if it were missing when a page is touched, the process would be
/// killed.
absl::Status SharedArena::Fresh() {
  if (::ftruncate(file_.get(), 0) != 0) return PosixError(errno, o_.path);
  if (const int error = ::posix_fallocate(file_.get(), 0, kHeaderBytes + o_.bytes); error != 0) {
    const absl::Status why = PosixError(error, fmt::format("{}: {} bytes", o_.path, o_.bytes));
    return absl::Status(absl::StatusCode::kResourceExhausted, why.message());
  }
  return absl::OkStatus();
}

absl::Status SharedArena::Map() {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return PosixError(errno, o_.path);
  if (status.st_size != kHeaderBytes + o_.bytes) {
    return FailedPrecondition("{}: other processes have {} bytes there; this one would have {}",
                              o_.path, status.st_size - kHeaderBytes, o_.bytes);
  }
  void* const at =
      ::mmap(nullptr, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (at == MAP_FAILED) return PosixError(errno, o_.path);
  header_ = static_cast<Header*>(at);
  mapped_ = status.st_size;
  return absl::OkStatus();
}

absl::Status SharedArena::CheckHeader() const {
  if (header_->magic == kMagic && header_->ready.load() == 1 && header_->contents == o_.contents &&
      header_->bytes == o_.bytes) {
    return absl::OkStatus();
  }
  return FailedPrecondition("{}: other processes have other records there", o_.path);
}

/// Whether the path still refers to this file.
bool SharedArena::Named() const {
  struct stat mine {
  }, there{};
  return ::fstat(file_.get(), &mine) == 0 && ::lstat(o_.path.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

/// The file loses its name when all processes are attached, so that nothing is left of processes
/// that die; then the gate is released.
absl::Status SharedArena::CountIn() {
  const bool all = header_->attached.fetch_add(1) + 1 >= o_.processes;
  if (all && Named() && ::unlink(o_.path.c_str()) != 0) return PosixError(errno, o_.path);
  if (const int error = Lock(file_.get(), kGate, F_UNLCK); error != 0) {
    return PosixError(error, o_.path + ": unlocking it");
  }
  return absl::OkStatus();
}

void SharedArena::NoteDone(int64_t bytes) { header_->done.store(bytes); }

absl::Status SharedArena::Publish() {
  header_->ready.store(1);
  MOERT_RETURN_IF_ERROR(CountIn());
  filled_ = true;
  return absl::OkStatus();
}

}  // namespace moert
