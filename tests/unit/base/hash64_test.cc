#include "base/hash64.h"

#include <string>
#include <vector>

#include "support/catch.h"

namespace moert {
namespace {

uint64_t Hash(const std::string& s) {
  return Hash64(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(s.data()), s.size()));
}

TEST_CASE("checksums are those of the definition, computed elsewhere") {
  CHECK(Hash("") == 0x6f371d5c8bd2540au);
  CHECK(Hash("a") == 0xb90669420e418e99u);
  std::string text;
  for (int i = 0; i < 20; ++i) text += "moert";
  CHECK(Hash(text) == 0xdd4500078010bc15u);
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i % 251);
  CHECK(Hash(bytes) == 0xa80aaae6b3e4acccu);
}

TEST_CASE("the checksum does not depend on how the data was cut") {
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes += static_cast<char>(i * 7);
  for (size_t step = 1; step < 100; ++step) {
    Hasher64 hasher;
    for (size_t i = 0; i < bytes.size(); i += step) {
      hasher.Add(absl::string_view(bytes).substr(i, step));
      hasher.Add(absl::string_view());
    }
    REQUIRE(hasher.Finish() == Hash(bytes));
  }
}

TEST_CASE("every flipped bit, and every changed length, is seen") {
  std::string bytes(130, '\x5a');
  const uint64_t whole = Hash(bytes);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
    REQUIRE(Hash(bytes) != whole);
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
  }
  CHECK(Hash(std::string(32, '\0')) != Hash(std::string(31, '\0')));
  CHECK(Hash(std::string(1, '\0')) != Hash(""));
}

}  // namespace
}  // namespace moert
