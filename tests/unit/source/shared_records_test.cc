// Processes that share one copy of the records: one reads, others wait, another takes over from one
// that dies, and nothing is left behind.
#include "moert/source/shared_records.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "moert/scheme.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

constexpr int64_t kSecond = 1'000'000'000;

SyntheticShape Shape() {
  SyntheticShape shape;
  shape.low_version = true;
  return shape;
}

/// A folder in place of /dev/shm, which goes with it.
class Folder {
 public:
  Folder() {
    char path[] = "/dev/shm/moert-test-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
  }
  ~Folder() {
    for (const std::string& file : Files()) ::unlink((path_ + "/" + file).c_str());
    ::rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    DIR* const folder = ::opendir(path_.c_str());
    while (const dirent* entry = ::readdir(folder)) {
      if (entry->d_name[0] != '.') files.emplace_back(entry->d_name);
    }
    ::closedir(folder);
    return files;
  }

 private:
  std::string path_;
};

SharedRecordsOptions Options(const Folder& folder, int processes) {
  SharedRecordsOptions options;
  options.name = "records";
  options.processes = processes;
  options.directory = folder.path();
  options.timeout_ns = 20 * kSecond;
  options.threads = 2;
  return options;
}

/// Whether all records come from the shared memory, with no read of the source's own.
bool Holds(const ExpertSource& shared, const SyntheticSource& source) {
  const int64_t reads = source.reads();
  for (int v = 0; v < 2; ++v) {
    for (int l = 0; l < shared.model().num_layers(); ++l) {
      for (int e = 0; e < shared.model().layers[static_cast<size_t>(l)].num_experts; ++e) {
        const std::vector<std::byte>& expected = source.record(l, e, v);
        std::vector<std::byte> got(expected.size() + kRecordAlignment);
        if (!shared.ReadRecord(l, e, v, absl::MakeSpan(got)).ok()) return false;
        if (std::memcmp(got.data(), expected.data(), expected.size()) != 0) return false;
      }
    }
  }
  return source.reads() == reads;
}

/// The exit status of a process of its own, 0 to 255; 1000 if it was killed.
class Child {
 public:
  explicit Child(const std::function<int()>& run) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(run());
    REQUIRE(pid_ > 0);
  }
  int Result() const {
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  }

 private:
  const pid_t pid_;
};

/// A line between processes: who reads waits for who writes.
class Line {
 public:
  Line() { REQUIRE(::pipe(ends_) == 0); }
  ~Line() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void Say() const { CHECK(::write(ends_[1], "x", 1) == 1); }
  void Hear() const {
    char said = 0;
    CHECK(::read(ends_[0], &said, 1) == 1);
  }

 private:
  int ends_[2];
};

constexpr int kRead = 1, kFound = 2, kFailed = 3;

/// kRead: this process read the records; kFound: they were there.
int Attach(const SharedRecordsOptions& options, const std::function<void()>& there = {}) {
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto shared = ShareRecords(source, options);
  if (!shared.ok()) return kFailed;
  const bool read = source->reads() > 2 * 3 * 2;  // first records of layers are looked at by all
  if (!Holds(**shared, *source)) return kFailed;
  if (there) there();
  return read ? kRead : kFound;
}

TEST_CASE("three processes: one reads, and the memory has no name when all are there") {
  const Folder folder;
  const Line ready, go;
  std::vector<Child> children;
  for (int i = 0; i < 3; ++i) {
    children.emplace_back([&] {
      return Attach(Options(folder, 3), [&] {
        ready.Say();
        go.Hear();
      });
    });
  }
  for (int i = 0; i < 3; ++i) ready.Hear();
  CHECK(folder.Files().empty());
  for (int i = 0; i < 3; ++i) go.Say();
  int readers = 0;
  for (const Child& child : children) {
    const int result = child.Result();
    CHECK((result == kRead || result == kFound));
    readers += result == kRead ? 1 : 0;
  }
  CHECK(readers == 1);
}

TEST_CASE("another takes over from one that is killed while it fills") {
  const Folder folder;
  const Line filling;
  const Child killed([&] {
    SharedRecordsOptions options = Options(folder, 2);
    options.progress = [&](int64_t, int64_t) {
      filling.Say();
      ::usleep(100'000);  // the other one waits by then
      ::raise(SIGKILL);
      return true;
    };
    return Attach(options);
  });
  filling.Hear();
  bool waited = false;
  const auto source = std::make_shared<SyntheticSource>(Shape());
  SharedRecordsOptions options = Options(folder, 2);
  int64_t most = 0;
  options.progress = [&](int64_t done, int64_t total) {
    waited = waited || source->reads() <= 2 * 3 * 2;
    most = std::max(most, done);
    return done <= total;
  };
  const auto shared = ShareRecords(source, options);
  REQUIRE_OK(shared.status());
  CHECK(killed.Result() == 1000);
  CHECK(waited);
  CHECK(Holds(**shared, *source));
  CHECK(folder.Files().size() == 1);  // the second of two is yet to come
  const Child second([&] { return Attach(Options(folder, 2)); });
  CHECK(second.Result() == kFound);
  CHECK(folder.Files().empty());
}

TEST_CASE("the last to leave takes the name along; what a crash left is filled anew") {
  const Folder folder;
  CHECK(Child([&] { return Attach(Options(folder, 5)); }).Result() == kRead);
  CHECK(folder.Files().empty());
  const Child killed([&] { return Attach(Options(folder, 5), [] { ::raise(SIGKILL); }); });
  CHECK(killed.Result() == 1000);
  REQUIRE(folder.Files().size() == 1);
  {  // what lies there is not believed
    std::fstream file(folder.path() + "/" + folder.Files()[0],
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3 * 4096);
    file << "something else";
  }
  CHECK(Child([&] { return Attach(Options(folder, 5)); }).Result() == kRead);
  CHECK(folder.Files().empty());
}

TEST_CASE("who fails to read lets another one try; a wait ends in time, or when it is cancelled") {
  const Folder folder;
  const Line filling, go;
  const Child fails([&] {
    SharedRecordsOptions options = Options(folder, 2);
    options.progress = [&](int64_t, int64_t) {
      filling.Say();
      go.Hear();
      return false;
    };
    const auto source = std::make_shared<SyntheticSource>(Shape());
    const absl::Status status = ShareRecords(source, options).status();
    return status.code() == absl::StatusCode::kCancelled ? kFound : kFailed;
  });
  filling.Hear();
  const auto source = std::make_shared<SyntheticSource>(Shape());
  SharedRecordsOptions options = Options(folder, 2);
  options.timeout_ns = kSecond / 20;
  const absl::Status late = ShareRecords(source, options).status();
  CHECK(late.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(late.message()).find("another process fills it") != std::string::npos);
  options.timeout_ns = 20 * kSecond;
  options.progress = [](int64_t, int64_t) { return false; };
  CHECK(ShareRecords(source, options).status().code() == absl::StatusCode::kCancelled);
  go.Say();
  CHECK(fails.Result() == kFound);
  CHECK(Attach(Options(folder, 1)) == kRead);
  CHECK(folder.Files().empty());
}

TEST_CASE("other records, no memory, and bad options are named") {
  const Folder folder;
  const auto source = std::make_shared<SyntheticSource>(Shape());
  const auto shared = ShareRecords(source, Options(folder, 4));
  REQUIRE_OK(shared.status());
  SyntheticShape larger = Shape();
  larger.intermediate *= 2;
  for (const auto& with : {std::make_shared<SyntheticSource>(larger),
                           std::make_shared<SyntheticSource>(Shape(), /*seed=*/2)}) {
    const absl::Status other = ShareRecords(with, Options(folder, 4)).status();
    CHECK(other.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(other.message()).find("other processes have") != std::string::npos);
  }
  CHECK(Holds(**shared, *source));  // as before

  const Child no_memory([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64 * 1024, 64 * 1024};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return kFailed;
    SharedRecordsOptions options = Options(folder, 2);
    options.name = "large";
    const absl::Status status =
        ShareRecords(std::make_shared<SyntheticSource>(Shape()), options).status();
    return status.code() == absl::StatusCode::kResourceExhausted ? kFound : kFailed;
  });
  CHECK(no_memory.Result() == kFound);
  CHECK(folder.Files().size() == 1);  // but for the first one's

  const auto refused = [&](const auto& change) {
    SharedRecordsOptions options = Options(folder, 2);
    change(&options);
    return ShareRecords(source, options).status().code();
  };
  using Options = SharedRecordsOptions;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  CHECK(refused([](Options* o) { o->name = ""; }) == invalid);
  CHECK(refused([](Options* o) { o->name = "../x"; }) == invalid);
  CHECK(refused([](Options* o) { o->processes = 0; }) == invalid);
  CHECK(refused([](Options* o) { o->timeout_ns = -1; }) == invalid);
  CHECK(refused([](Options* o) { o->directory = "/nowhere"; }) == absl::StatusCode::kNotFound);
  CHECK(ShareRecords(nullptr, {}).status().code() == invalid);
  REQUIRE(::symlink("/etc/passwd", (folder.path() + "/moert-link").c_str()) == 0);
  CHECK(refused([](Options* o) { o->name = "link"; }) != absl::StatusCode::kOk);
}

}  // namespace
}  // namespace moert
