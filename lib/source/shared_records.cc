#include "moert/source/shared_records.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/checked_math.h"
#include "base/errors.h"
#include "base/exception_status.h"
#include "base/hash64.h"
#include "base/pinned_memory.h"
#include "base/status_macros.h"
#include "fmt/format.h"
#include "source/pinned_source.h"
#include "source/shared_arena.h"

namespace moert {
namespace {

/// Hands out an arena's memory in order; it is released as a whole.
class ArenaAllocator final : public HostAllocator {
 public:
  explicit ArenaAllocator(std::unique_ptr<SharedArena> arena) : arena_(std::move(arena)) {}

  /// Makes the memory usable for copies by devices. False if the system refuses to lock so much.
  bool Lock() {
    absl::StatusOr<std::shared_ptr<void>> locked = LockPages(arena_->data(), arena_->bytes());
    if (locked.ok()) locked_ = *std::move(locked);
    return locked_ != nullptr;
  }
  void* Allocate(int64_t bytes, int64_t /*alignment*/) override {  // records are whole pages
    if (bytes > arena_->bytes() - used_) return nullptr;
    return arena_->data() + std::exchange(used_, used_ + bytes);
  }
  void Free(void* /*memory*/, int64_t /*bytes*/) override {}

  SharedArena* arena() { return arena_.get(); }

 private:
  const std::unique_ptr<SharedArena> arena_;
  std::shared_ptr<void> locked_;
  int64_t used_ = 0;
};

/// A fingerprint of the model's shape and of each layer's first record.
absl::StatusOr<uint64_t> RecordsFingerprint(const ExpertSource& source) {
  std::vector<uint64_t> facts;
  AlignedBuffer record;
  for (int l = 0; l < source.model().num_layers(); ++l) {
    const MoeLayerSpec& layer = source.model().layers[l];
    for (int v = 0; v < source.num_versions(); ++v) {
      for (int e = 0; e < layer.num_experts; ++e) {
        facts.push_back(static_cast<uint64_t>(source.layout(l, e, v).bytes));
      }
    }
    const auto bytes = static_cast<size_t>(source.layout(l, 0, 0).bytes);
    const auto padded = RoundUp(static_cast<int64_t>(bytes), kRecordAlignment);
    MOERT_RETURN_IF_ERROR(record.Reset(padded));
    MOERT_RETURN_IF_ERROR(source.ReadRecord(l, 0, 0, absl::MakeSpan(record.data(), padded)));
    facts.push_back(Hash64({record.data(), bytes}));
  }
  return Hash64(
      {reinterpret_cast<const std::byte*>(facts.data()), facts.size() * sizeof(facts[0])});
}

absl::Status Check(const SharedRecordsOptions& options) {
  const bool plain = std::all_of(options.name.begin(), options.name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (options.name.empty() || options.name.size() > 128 || !plain) {
    return InvalidArgument("name \"{}\": must be 1 to 128 letters, digits, '-', '_' or '.'",
                           options.name);
  }
  if (options.processes < 1) {
    return InvalidArgument("processes {}: must be 1 or more", options.processes);
  }
  if (options.timeout_ns < 0) {
    return InvalidArgument("timeout_ns {}: must be 0 or more", options.timeout_ns);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ExpertSource>> ShareRecords(
    std::shared_ptr<const ExpertSource> source, const SharedRecordsOptions& options) try {
  if (source == nullptr) return absl::InvalidArgumentError("source: must not be null");
  MOERT_RETURN_IF_ERROR(Check(options));
  ArenaOptions of;
  of.path = fmt::format("{}/moert-{}", options.directory, options.name);
  of.bytes = PinnedSource(source, nullptr).TotalBytes();
  MOERT_ASSIGN_OR_RETURN(of.contents, RecordsFingerprint(*source));
  of.processes = options.processes;
  of.timeout_ns = options.timeout_ns;
  if (options.progress != nullptr) {
    of.waiting = [&](int64_t done) { return options.progress(done, of.bytes); };
  }
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<SharedArena> opened, SharedArena::Open(of));
  const auto allocator = std::make_shared<ArenaAllocator>(std::move(opened));
  SharedArena* const arena = allocator->arena();
  PinnedSource::ReadOptions read;
  read.threads = options.threads;
  read.there = arena->filled();
  read.locked = options.pin && allocator->Lock();
  read.progress = [&](int64_t done, int64_t total) {
    if (!read.there) arena->NoteDone(done);
    return options.progress == nullptr || options.progress(done, total);
  };
  auto shared = std::make_shared<PinnedSource>(std::move(source), allocator);
  MOERT_RETURN_IF_ERROR(shared->Read(read));
  if (!read.there) MOERT_RETURN_IF_ERROR(arena->Publish());
  return shared;
} catch (...) {
  return ExceptionStatus("sharing records");
}

}  // namespace moert
