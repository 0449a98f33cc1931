// The 64-bit checksum of records and cache keys. Not cryptographic: it detects damage, not malice.
//
// Definition (format version 1; the value is part of files and must never change): the input,
// padded with zeros to a multiple of 32 bytes, is read as little-endian u64 words. Word i goes to
// lane i % 4:
//   lane = rotl64((lane ^ word) * 0x9e3779b97f4a7c15, 29)
// where lane j starts at mix(j + 1). With h = mix(length in bytes), h = mix(h ^ lane_j) for j =
// 0..3 gives the result. mix(x) is: x ^= x >> 32; x *= 0xd6e8feb86659fd93; x ^= x >> 32; x *=
// 0xd6e8feb86659fd93; x ^= x >> 32. Every step is a bijection of the lane, so damage within one
// aligned u64 is always detected.
#ifndef MOERT_LIB_BASE_HASH64_H_
#define MOERT_LIB_BASE_HASH64_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moert {

/// Feeds data in pieces of any size; the result does not depend on how it was cut.
class Hasher64 {
 public:
  Hasher64();
  void Add(absl::Span<const std::byte> data);
  void Add(absl::string_view text) {
    Add(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
  }
  /// Does not change the state.
  uint64_t Finish() const;

 private:
  std::array<uint64_t, 4> lanes_;
  std::array<std::byte, 32> tail_{};
  size_t tail_bytes_ = 0;
  uint64_t length_ = 0;
};

uint64_t Hash64(absl::Span<const std::byte> data);
inline uint64_t Hash64(absl::string_view text) {
  return Hash64(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

}  // namespace moert

#endif  // MOERT_LIB_BASE_HASH64_H_
