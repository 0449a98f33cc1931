// Memory and threads of a NUMA node. On a machine of one node little can go wrong; where the system
// forbids placement (containers do) the tests say so and pass.
#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "moert/engine.h"
#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

TEST_CASE("nodes have CPUs, and others are refused by name") {
  const std::vector<int> nodes = NumaNodes();
  REQUIRE_FALSE(nodes.empty());
  CHECK(std::is_sorted(nodes.begin(), nodes.end()));
  const auto cpus = NumaCpus(nodes[0]);
  if (cpus.ok()) CHECK_FALSE(cpus->empty());
  const auto none = NumaCpus(nodes.back() + 1);
  CHECK(none.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(none.status().message()).find("this machine has") != std::string::npos);
}

TEST_CASE("pages come from the node they are bound to") {
  constexpr size_t kBytes = 1 << 20;
  for (const int node : NumaNodes()) {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    const absl::Status bound = BindToNumaNode(memory, kBytes, node);
    if (!bound.ok()) {
      WARN("not placed: " << bound.ToString());
      CHECK(bound.code() == absl::StatusCode::kUnavailable);
    } else {
      std::memset(memory, 1, kBytes);
      int at = -1;
      if (syscall(SYS_get_mempolicy, &at, nullptr, 0, memory, MPOL_F_NODE | MPOL_F_ADDR) == 0) {
        CHECK(at == node);
      }
    }
    munmap(memory, kBytes);
  }
}

TEST_CASE("an engine on a node") {
  EngineOptions options;
  options.threads = 2;
  options.numa_node = NumaNodes()[0];
  const auto source = std::make_shared<test::SyntheticSource>(test::SyntheticShape{});
  const auto engine = Engine::Create(source, options);
  if (!engine.ok()) {
    WARN("not placed: " << engine.status().ToString());
    CHECK(engine.status().code() != absl::StatusCode::kInvalidArgument);
  }
  options.numa_node = 1000;
  CHECK(Engine::Create(source, options).status().code() == absl::StatusCode::kInvalidArgument);
  options.numa_node = -2;
  CHECK(Engine::Create(source, options).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moert
