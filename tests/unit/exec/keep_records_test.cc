// Which records a device that serves misses finds in pinned memory from the start
// (exec/cuda/memory/keep_records.cc). There is no device here, and plain memory is what is pinned.
#include <cstring>

#include "exec/backend.h"
#include "exec/cuda/compute_fence.h"
#include "exec/cuda/memory/device_transfers.h"
#include "support/catch.h"
#include "support/no_device.h"
#include "support/synthetic_source.h"

namespace moert::test {
namespace {

constexpr int kHigh = 0, kLow = 1;

SyntheticShape TwoVersions() {
  SyntheticShape shape;
  shape.low_version = true;
  return shape;
}

struct Fixture {
  explicit Fixture(int64_t budget) : records(&source, 0, budget, budget, &fence, nullptr) {}
  absl::Status Keep(bool shared) {
    return cuda::KeepRecords(&records, kHigh, kLow, shared, pool.get());
  }
  int Kept(int version) const {
    int kept = 0;
    for (int l = 0; l < source.model().num_layers(); ++l) {
      for (int e = 0; e < source.model().layers[l].num_experts; ++e) {
        const std::byte* const record = records.KeptRecord({l, e}, version);
        const std::vector<std::byte>& expected = source.record(l, e, version);
        kept += record != nullptr && std::memcmp(record, expected.data(), expected.size()) == 0;
      }
    }
    return kept;
  }

  SyntheticSource source{TwoVersions()};
  std::unique_ptr<ThreadPool> pool = *CreateThreadPool({.threads = 2});
  cuda::ComputeFence fence;
  cuda::DeviceSource records;
};

TEST_CASE("low versions are kept whole, and high ones as far as there is room") {
  const SyntheticSource source(TwoVersions());
  const int all = source.model().total_experts();
  const int64_t low = UnpinnedBytes(source, {kLow}), high = UnpinnedBytes(source, {kHigh});
  for (const double share : {0.0, 0.6, 1.0}) {
    CAPTURE(share);
    Fixture f(low + static_cast<int64_t>(share * static_cast<double>(high)));
    REQUIRE_OK(f.Keep(/*shared=*/true));
    CHECK(f.Kept(kLow) == all);
    CHECK((f.Kept(kHigh) == all) == (share == 1));
    CHECK((f.Kept(kHigh) > 0) == (share > 0));
    CHECK(f.records.moves() == (share < 1));
    CHECK(f.records.pinned_bytes() <=
          low + static_cast<int64_t>(share * static_cast<double>(high)));
  }
  Fixture lacking(low - 1);
  const absl::Status refused = lacking.Keep(/*shared=*/true);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(refused.message()),
             Catch::Contains("records in low") && !Catch::Contains("faithful"));
  CHECK(!lacking.records.moves());
  Fixture alone(low + high - 1);
  CHECK_THAT(std::string(alone.Keep(/*shared=*/false).message()),
             Catch::Contains("records in bf16") && Catch::Contains("faithful"));
}

}  // namespace
}  // namespace moert::test
