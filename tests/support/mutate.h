// Damages a file the way disks, networks and attackers do.
#ifndef MOERT_TESTS_SUPPORT_MUTATE_H_
#define MOERT_TESTS_SUPPORT_MUTATE_H_

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

namespace moert::test {

/// One to four changes: flipped bits, interesting bytes, extreme numbers in binary and in text,
/// cuts, insertions, moved and repeated ranges. Headers are hit more often than their share.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Damage(const std::string& original) {
    std::string s = original;
    for (uint64_t i = 1 + Below(4); i > 0; --i) Change(&s);
    if (s == original) s.append(1, '\0');
    return s;
  }

  uint64_t Below(uint64_t n) { return n == 0 ? 0 : random_() % n; }

 private:
  // A position in the first 4 KiB seven times of ten.
  size_t At(const std::string& s) {
    const size_t span = Below(10) < 7 ? std::min<size_t>(s.size(), 4096) : s.size();
    return static_cast<size_t>(Below(span));
  }

  void Change(std::string* s) {
    static const std::string kBytes("\x00\xff\x7f\x80\"{}[],:0129-.eE\\ \xc3", 21);
    static const uint64_t kWords[] = {0,
                                      1,
                                      0x7f,
                                      0xff,
                                      0xffff,
                                      0x7fffffff,
                                      0xffffffff,
                                      uint64_t{1} << 32,
                                      uint64_t{1} << 62,
                                      INT64_MAX,
                                      ~uint64_t{0}};
    if (s->empty()) *s = kBytes;
    const size_t at = At(*s);
    const size_t length =
        std::min(s->size() - at, static_cast<size_t>(1 + Below(Below(2) == 0 ? 8 : 300)));
    switch (Below(10)) {
      case 0:
      case 1:
        (*s)[at] = static_cast<char>((*s)[at] ^ (1 << Below(8)));
        break;
      case 2:
        (*s)[at] = kBytes[Below(kBytes.size())];
        break;
      case 3:
        s->resize(at);
        break;
      case 4:
        s->erase(at, length);
        break;
      case 5:
        s->insert(at, s->substr(At(*s), length));
        break;
      case 6:
        for (uint64_t i = 1 + Below(8); i > 0; --i) {
          s->insert(at, 1, static_cast<char>(Below(256)));
        }
        break;
      case 7: {
        const uint64_t word = kWords[Below(std::size(kWords))] - Below(2);
        const size_t width = std::min(s->size() - at, size_t{1} << Below(4));
        std::memcpy(s->data() + at, &word, width);
        break;
      }
      default:
        ReplaceNumber(s, at);
    }
  }

  // The first run of digits behind `at` becomes another number.
  void ReplaceNumber(std::string* s, size_t at) {
    static const char* const kNumbers[] = {"-1",    "0",     "1",          "18446744073709551615",
                                           "1e308", "0.5",   "65536",      "9223372036854775807",
                                           "-1e-9", "\"1\"", "null",       "9223372036854775808",
                                           "[]",    "true",  "4294967296", "4611686018427387904"};
    while (at < s->size() && !std::isdigit(static_cast<unsigned char>((*s)[at]))) ++at;
    size_t end = at;
    while (end < s->size() && std::isdigit(static_cast<unsigned char>((*s)[end]))) ++end;
    s->replace(at, end - at, kNumbers[Below(std::size(kNumbers))]);
  }

  std::mt19937_64 random_;
};

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_MUTATE_H_
