// Where a job for the CPU finds records that pinned memory has no place for
// (exec/cuda/cache/job_records.h). There is none here.
#include "exec/cuda/cache/job_records.h"

#include <cstring>
#include <vector>

#include "exec/cuda/compute_fence.h"
#include "support/catch.h"
#include "support/no_device.h"
#include "support/synthetic_source.h"

namespace moert::test {
namespace {

class InRam final : public SyntheticSource {
 public:
  explicit InRam(bool shown) : SyntheticSource(SyntheticShape{}), shown_(shown) {}
  const std::byte* HostRecord(int layer, int expert, int version) const override {
    return shown_ ? record(layer, expert, version).data() : nullptr;
  }

 private:
  const bool shown_;
};

TEST_CASE("a record is multiplied where the source has it in memory, else it is read") {
  const bool shown = GENERATE(false, true);
  InRam source(shown);
  cuda::ComputeFence fence;
  cuda::DeviceSource kept(&source, 0, /*host_budget=*/0, /*pinned_limit=*/0, &fence, nullptr);
  REQUIRE_OK(kept.MoveByUse(0));
  const auto pool = *CreateThreadPool({.threads = 2});
  cuda::JobRecords records(&kept, 0, pool.get());
  const std::vector<cuda::CpuJobExpert> experts{{1, 1}, {4, 2}};
  std::vector<const std::byte*> found;
  for (int job = 0; job < 2; ++job) {
    REQUIRE_OK(records.Find(2, experts, &found));
    REQUIRE(found.size() == 2);
    for (size_t i = 0; i < 2; ++i) {
      const std::vector<std::byte>& expected = source.record(2, experts[i].expert, 0);
      CHECK(std::memcmp(found[i], expected.data(), expected.size()) == 0);
      CHECK((found[i] == expected.data()) == shown);
    }
    records.EndJob();
  }
  CHECK(source.reads() == (shown ? 0 : 4));
  CHECK(records.TakeReadBytes() == (shown ? 0 : 4 * source.layout(2, 1, 0).bytes));
  CHECK((records.read_ns() > 0) == !shown);
  source.set_broken(true);
  CHECK(records.Find(2, experts, &found).ok() == shown);
}

}  // namespace
}  // namespace moert::test
