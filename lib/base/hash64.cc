#include "base/hash64.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace moert {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read without conversion");

constexpr uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

void Block(std::array<uint64_t, 4>& lanes, const std::byte* p) {
  uint64_t words[4];
  std::memcpy(words, p, sizeof(words));
  for (size_t j = 0; j < 4; ++j) {
    lanes[j] = std::rotl((lanes[j] ^ words[j]) * 0x9e3779b97f4a7c15u, 29);
  }
}

}  // namespace

Hasher64::Hasher64() : lanes_{Mix(1), Mix(2), Mix(3), Mix(4)} {}

void Hasher64::Add(absl::Span<const std::byte> data) {
  if (data.empty()) return;  // data() may be null
  length_ += data.size();
  const std::byte* p = data.data();
  size_t left = data.size();
  if (tail_bytes_ > 0) {
    const size_t n = std::min(left, tail_.size() - tail_bytes_);
    std::memcpy(tail_.data() + tail_bytes_, p, n);
    tail_bytes_ += n;
    p += n;
    left -= n;
    if (tail_bytes_ < tail_.size()) return;
    Block(lanes_, tail_.data());
    tail_bytes_ = 0;
  }
  std::array<uint64_t, 4> lanes = lanes_;
  for (; left >= tail_.size(); p += tail_.size(), left -= tail_.size()) Block(lanes, p);
  lanes_ = lanes;
  if (left > 0) std::memcpy(tail_.data(), p, left);
  tail_bytes_ = left;
}

uint64_t Hasher64::Finish() const {
  std::array<uint64_t, 4> lanes = lanes_;
  if (tail_bytes_ > 0) {
    std::array<std::byte, 32> last{};
    std::memcpy(last.data(), tail_.data(), tail_bytes_);
    Block(lanes, last.data());
  }
  uint64_t h = Mix(length_);
  for (const uint64_t lane : lanes) h = Mix(h ^ lane);
  return h;
}

uint64_t Hash64(absl::Span<const std::byte> data) {
  Hasher64 hasher;
  hasher.Add(data);
  return hasher.Finish();
}

}  // namespace moert
