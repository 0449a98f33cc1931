// One copy of the records in memory that processes share: devices copy from it, each process has a
// device of its own.
#include "moert/source/shared_records.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "rank_run.h"

extern char** environ;

namespace moert::test {
namespace {

constexpr char kName[] = "MOERT_TEST_SHARED_NAME";

/// Offloaded steps on a device, out of the shared memory.
void CheckShared(const SharedRecordsOptions& options, int device) {
  const auto source = std::make_shared<SyntheticSource>(ShardedShape());
  const auto shared = ShareRecords(source, options);
  REQUIRE_OK(shared.status());
  REQUIRE((*shared)->PinnedRecord(0, 0, 0) != nullptr);
  const int64_t reads = source->reads();
  auto engine = Engine::Create(*shared, Options(device, 5, 0.3));
  REQUIRE_OK(engine.status());
  // All records are in host memory: the device itself can bring what is missing.
  CHECK((*engine)->graph_needs().capturable);
  RankRows at(device, source->model(), 5);
  for (int s = 0; s < 3; ++s) {
    auto step = (*engine)->BeginStep(at.Info(Phase::kDecode));
    REQUIRE_OK(step.status());
    for (int l = 0; l < source->model().num_layers(); ++l) {
      REQUIRE_OK((*engine)->ForwardRouted(*step, l, at.x(l), at.routing(Place::kDevice), at.y(l)));
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  const std::vector<float> outputs = at.Outputs();
  CHECK(source->reads() == reads);
  engine->reset();
  CHECK(outputs == OneEngine(std::make_shared<SyntheticSource>(ShardedShape()), device, 5, true));
}

SharedRecordsOptions Shared(const std::string& name, int processes) {
  SharedRecordsOptions options;
  options.name = name;
  options.processes = processes;
  options.timeout_ns = 60 * kSecond;
  return options;
}

TEST_CASE("devices copy from shared memory") {
  CheckShared(Shared("gpu-test-" + std::to_string(::getpid()), 1), 0);
}

TEST_CASE("the second process", "[.]") {
  const char* const name = std::getenv(kName);
  REQUIRE(name != nullptr);
  CheckShared(Shared(name, 2), Devices() - 1);
}

TEST_CASE("two processes, each with a device") {
  const std::string name = "gpu-test-two-" + std::to_string(::getpid());
  ::setenv(kName, name.c_str(), 1);
  char self[] = "/proc/self/exe", filter[] = "the second process";
  char* const arguments[] = {self, filter, nullptr};
  pid_t second = 0;
  REQUIRE(::posix_spawn(&second, self, nullptr, nullptr, arguments, environ) == 0);
  CheckShared(Shared(name, 2), 0);
  int status = 0;
  REQUIRE(::waitpid(second, &status, 0) == second);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(::access(("/dev/shm/moert-" + name).c_str(), F_OK) != 0);
}

}  // namespace
}  // namespace moert::test
