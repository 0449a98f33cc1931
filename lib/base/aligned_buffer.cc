#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/errors.h"

namespace moert {

void AlignedBuffer::Free::operator()(std::byte* data) const { std::free(data); }

absl::Status AlignedBuffer::Reset(int64_t bytes) {
  constexpr int64_t kHugePage = int64_t{2} << 20;
  data_.reset();
  size_ = 0;
  if (bytes <= 0) return absl::OkStatus();
  const int64_t alignment = bytes >= kHugePage ? kHugePage : 4096;
  void* block = nullptr;
  if (posix_memalign(&block, static_cast<size_t>(alignment), static_cast<size_t>(bytes)) != 0) {
    return ResourceExhausted("no memory for {} bytes", bytes);
  }
  // Advice only: streaming through 4 KiB pages costs a TLB miss each.
  if (bytes >= kHugePage) madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_.reset(static_cast<std::byte*>(block));
  size_ = bytes;
  return absl::OkStatus();
}

}  // namespace moert
