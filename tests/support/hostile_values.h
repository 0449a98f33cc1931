// Values that no file should have, put in place of every value of a well-formed one: numbers at and
// beyond the edges, other types, long and deep ones, or nothing. A program of one file includes
// this.
#ifndef MOERT_TESTS_SUPPORT_HOSTILE_VALUES_H_
#define MOERT_TESTS_SUPPORT_HOSTILE_VALUES_H_

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "support/catch.h"
#include "support/heap_peak.h"

namespace moert::test {

using Pointer = nlohmann::json::json_pointer;
using Reader = std::function<absl::Status(const std::string& bytes)>;

inline std::vector<nlohmann::json> HostileValues() {
  using nlohmann::json;
  json deep = json::array();
  for (int i = 0; i < 100; ++i) deep = json::array({deep});
  return {-1,
          0,
          1,
          65537,
          2147483648,
          9007199254740993,
          INT64_MAX,
          INT64_MIN,
          UINT64_MAX,
          1e308,
          -0.5,
          "",
          "../../../etc/passwd",
          "\x1b[2J\x01",
          std::string(70'000, 'x'),
          true,
          nullptr,
          json::array(),
          json::object(),
          json::array({json::array({0})}),
          json(std::vector<int>(3000, 0)),
          deep};
}

/// Where values are: all members, and the first and last element of lists.
inline void Places(const nlohmann::json& value, const Pointer& at, std::vector<Pointer>* places) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      places->push_back(at / key);
      Places(member, at / key, places);
    }
  } else if (value.is_array() && !value.empty()) {
    for (const size_t i : {size_t{0}, value.size() - 1}) {
      places->push_back(at / i);
      Places(value[i], at / i, places);
      if (value.size() == 1) break;
    }
  }
}

/// `most` of all replacements and removals, spread evenly.
inline std::vector<nlohmann::json> Variants(const nlohmann::json& intact, size_t most) {
  using nlohmann::json;
  std::vector<Pointer> places;
  Places(intact, Pointer(), &places);
  const std::vector<json> values = HostileValues();
  const size_t all = places.size() * (values.size() + 1);
  const size_t count = std::min(most, all);
  std::vector<json> variants;
  for (size_t i = 0; i < count; ++i) {
    const size_t n = i * all / count;
    const Pointer& place = places[n / (values.size() + 1)];
    const size_t which = n % (values.size() + 1);
    json variant = intact;
    if (which < values.size()) {
      variant[place] = values[which];
    } else if (variant[place.parent_pointer()].is_object()) {
      variant[place.parent_pointer()].erase(place.back());
    } else {
      variant[place.parent_pointer()].erase(variant[place.parent_pointer()].size() - 1);
    }
    variants.push_back(std::move(variant));
  }
  return variants;
}

/// Heap over the file's bytes: the library's bound, and that of the examples' trees.
inline constexpr int64_t kText = 3, kTree = 24;

inline int files = 0, refusals = 0;  // of all cases

/// How many were refused. `make`: the file of a text.
inline int Attack(const std::string& name, const nlohmann::json& intact, size_t most,
                  const std::function<std::string(const nlohmann::json&)>& make, const Reader& read,
                  int64_t of_size = kText) {
  using nlohmann::json;
  const std::string whole = make(intact);
  INFO(name);
  REQUIRE_OK(read(whole));  // also what is made once
  const HeapPeak usual;
  REQUIRE_OK(read(whole));
  const int64_t intact_bytes = usual.bytes();
  int refused = 0;
  for (const json& variant : Variants(intact, most)) {
    const std::string bytes = make(variant);
    INFO(name << ": " << json::diff(intact, variant).dump().substr(0, 200));
    const HeapPeak heap;
    const absl::Status status = read(bytes);
    const auto size = static_cast<int64_t>(bytes.size());
    CHECK(heap.bytes() <= 2 * intact_bytes + of_size * size + 65536);
    ++files;
    if (status.ok()) continue;
    INFO(std::string(status.message()));
    CHECK(status.code() != absl::StatusCode::kInternal);
    CHECK(status.code() != absl::StatusCode::kUnknown);
    CHECK(status.code() != absl::StatusCode::kResourceExhausted);
    CHECK(!status.message().empty());
    CHECK(status.message().size() < 4096);
    CHECK(std::all_of(status.message().begin(), status.message().end(),
                      [](char c) { return (c >= ' ' && c <= '~') || c == '\n'; }));
    ++refused;
  }
  refusals += refused;
  return refused;
}

/// As docs/internals/testing.md says; of a run of all of a program's cases.
inline void CheckNumbers(int more_than, int refused_more_than) {
  if (files <= 1000) return;
  CHECK(files > more_than);
  CHECK(refusals > refused_more_than);
}

inline std::string Dump(const nlohmann::json& value) { return value.dump(); }

}  // namespace moert::test

#endif  // MOERT_TESTS_SUPPORT_HOSTILE_VALUES_H_
