// Memory that ExpertSource::ReadRecord accepts.
#ifndef MOERT_TESTS_SUPPORT_RECORD_BUFFER_H_
#define MOERT_TESTS_SUPPORT_RECORD_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/types/span.h"
#include "moert/scheme.h"

namespace moert::test {

class RecordBuffer {
 public:
  explicit RecordBuffer(int64_t bytes)
      : bytes_((bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment),
        data_(static_cast<std::byte*>(
            std::aligned_alloc(kRecordAlignment, static_cast<size_t>(bytes_)))) {}
  std::byte* data() const { return data_.get(); }
  absl::Span<std::byte> span() const { return {data_.get(), static_cast<size_t>(bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  const int64_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_RECORD_BUFFER_H_
