// A 64-byte aligned, fixed-size array without initialization.
#ifndef MOERT_LIB_BASE_ALIGNED_ARRAY_H_
#define MOERT_LIB_BASE_ALIGNED_ARRAY_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace moert {

template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(int64_t size) : size_(size) {
    const size_t bytes = (static_cast<size_t>(size) * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
  }

  T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  int64_t size_ = 0;
  std::unique_ptr<T, Free> data_;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_ALIGNED_ARRAY_H_
