// A block of uninitialized memory for records and activations: aligned for direct I/O and kernels,
// on huge pages where the system has them, and an error value when there is none.
#ifndef MOERT_EXAMPLES_UTIL_ALIGNED_BUFFER_H_
#define MOERT_EXAMPLES_UTIL_ALIGNED_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace moert::util {

class AlignedBuffer {
 public:
  /// Replaces the block with one of `bytes` (0: none). The old block is freed first.
  absl::Status Reset(int64_t bytes) {
    constexpr int64_t kPage = 4096, kHugePage = int64_t{2} << 20;
    data_.reset();
    size_ = 0;
    if (bytes <= 0) return absl::OkStatus();
    const int64_t alignment = bytes >= kHugePage ? kHugePage : kPage;
    void* block = nullptr;
    if (posix_memalign(&block, static_cast<size_t>(alignment), static_cast<size_t>(bytes)) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes"));
    }
    // Advice only: streaming through 4 KiB pages costs a TLB miss each.
    if (bytes >= kHugePage) madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    data_.reset(static_cast<std::byte*>(block));
    size_ = bytes;
    return absl::OkStatus();
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_ = 0;
};

}  // namespace moert::util

#endif  // MOERT_EXAMPLES_UTIL_ALIGNED_BUFFER_H_
