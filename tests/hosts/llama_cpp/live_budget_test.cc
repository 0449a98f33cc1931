#include "live_budget.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert_ggml {
namespace {

using moert::test::TempDir;
using moert::test::WriteFile;

constexpr int64_t kGiB = int64_t{1} << 30;

struct Found {
  bool changed = false;
  int64_t bytes = 0;
  double fraction = 0;
  std::string error;
};

Found Changed(BudgetFile* file) {
  Found found;
  found.changed = file->ReadChanged(&found.bytes, &found.fraction, &found.error);
  return found;
}

TEST_CASE("a budget file is read as it changes, and what is wrong with it is said once") {
  const TempDir dir;
  const std::string path = dir / "budget";
  BudgetFile file(path);
  CHECK(Changed(&file).error.find("cannot be opened: No such file") != std::string::npos);
  CHECK(Changed(&file).error.empty());
  WriteFile(path, "8GiB\n");
  Found found = Changed(&file);
  CHECK((found.changed && found.bytes == 8 * kGiB && found.fraction == 0));
  CHECK_FALSE(Changed(&file).changed);
  WriteFile(path, " 25%");
  found = Changed(&file);
  CHECK((found.changed && found.bytes == 0 && found.fraction == 0.25));
  for (const char* text : {"much", "", "125%", "-1", "8 GiB or so"}) {
    WriteFile(path, "1G");
    CHECK(Changed(&file).changed);
    WriteFile(path, text);
    found = Changed(&file);
    INFO(text);
    CHECK_FALSE(found.changed);
    CHECK(found.error.find(path + " has \"" + text + "\", legal is a size such as 8G") !=
          std::string::npos);
    CHECK(Changed(&file).error.empty());
  }
  WriteFile(path, "\xe2\x80\xae" + std::string(1 << 20, 'x'));
  found = Changed(&file);
  CHECK(found.error.size() < 400);
  for (const char c : found.error) CHECK((c >= ' ' && c <= '~'));
}

TEST_CASE("neither a pipe nor a folder is waited for") {
  const TempDir dir;
  const std::string pipe = dir / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, dir.path()}) {
    BudgetFile file(path);
    CHECK(Changed(&file).error.find("is no regular file") != std::string::npos);
  }
}

TEST_CASE("a budget that nobody named leaves its reserve free") {
  MemoryNow now;
  now.budget = now.held = 10 * kGiB;
  now.least = kGiB;
  now.most = 40 * kGiB;
  const int64_t reserve = 2 * kGiB;
  const auto with = [&](int64_t free) {
    now.free = free;
    return FollowFree(now, reserve);
  };
  CHECK(with(-1) == now.budget);  // not known
  for (const int64_t free : {kGiB, reserve, 2 * reserve}) CHECK(with(free) == now.budget);
  CHECK(with(kGiB - 1) == now.budget - kGiB - 1);
  CHECK(with(0) == 8 * kGiB);
  CHECK(with(6 * kGiB) == 14 * kGiB);
  CHECK(with(100 * kGiB) == now.most);
  now.held = 4 * kGiB;  // 6 GiB of what is free are its own
  CHECK(with(8 * kGiB) == now.budget);
  CHECK(with(6 * kGiB) == 8 * kGiB);
  now.budget = now.held = 2 * kGiB;
  CHECK(with(0) == now.least);
}

TEST_CASE("what it becomes stays: a second look changes nothing") {
  const int64_t reserve = 2 * kGiB, room = 24 * kGiB;
  for (int64_t others = 0; others <= room - 10 * kGiB; others += kGiB / 2) {
    MemoryNow now;
    now.least = kGiB;
    now.most = 20 * kGiB;
    now.budget = now.held = 10 * kGiB;
    for (int look = 0; look < 2; ++look) {
      now.free = std::max<int64_t>(0, room - others - now.held);
      const int64_t next = FollowFree(now, reserve);
      if (look == 1) CHECK(next == now.budget);
      now.budget = now.held = next;
    }
  }
}

TEST_CASE("once a second") {
  EverySecond due;
  const auto begin = EverySecond::Time::clock::now();
  CHECK_FALSE(due(begin));
  CHECK(due(begin + std::chrono::milliseconds(1001)));
  CHECK_FALSE(due(begin + std::chrono::milliseconds(1900)));
  CHECK(due(begin + std::chrono::milliseconds(2002)));
}

}  // namespace
}  // namespace moert_ggml
