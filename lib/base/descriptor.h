// A file descriptor with an owner.
#ifndef MOERT_LIB_BASE_DESCRIPTOR_H_
#define MOERT_LIB_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace moert {

class Descriptor {
 public:
  /// Negative: none.
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_DESCRIPTOR_H_
