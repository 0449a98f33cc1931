// A block of uninitialized memory for kernels: aligned, on huge pages if that pays, and with an
// error value instead of an exception when memory runs out.
#ifndef MOERT_LIB_BASE_ALIGNED_BUFFER_H_
#define MOERT_LIB_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace moert {

class AlignedBuffer {
 public:
  /// Replaces the block with one of `bytes` (0: none). Frees the old block first, so that both are
  /// never held together. ResourceExhausted when memory runs out; the buffer is then empty.
  absl::Status Reset(int64_t bytes);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t size_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_ALIGNED_BUFFER_H_
