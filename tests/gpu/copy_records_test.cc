// Records from mapped host memory into device memory by the device's own threads: every byte
// arrives, and none behind. With [rates]: how fast, beside the copy engine.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "device_array.h"
#include "device_time.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/cache/serve_misses.h"
#include "tests/support/catch.h"

namespace moert::test {
namespace {

using cuda::RecordCopy;

/// Bytes in pinned memory, where the device finds them too.
class Pinned {
 public:
  explicit Pinned(int64_t bytes) : bytes_(bytes) {
    auto buffer = cuda::Buffer::Pinned(bytes);
    REQUIRE_OK(buffer.status());
    buffer_ = std::move(*buffer);
    std::mt19937 rng(3);
    for (int64_t i = 0; i < bytes; i += 4) {
      const auto word = static_cast<uint32_t>(rng());
      std::memcpy(buffer_.data() + i, &word, 4);
    }
    void* mapped = nullptr;
    REQUIRE(cudaHostGetDevicePointer(&mapped, buffer_.data(), 0) == cudaSuccess);
    mapped_ = static_cast<const uint8_t*>(mapped);
  }
  const uint8_t* mapped() const { return mapped_; }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(buffer_.data()); }
  int64_t bytes() const { return bytes_; }

 private:
  const int64_t bytes_;
  cuda::Buffer buffer_;
  const uint8_t* mapped_ = nullptr;
};

TEST_CASE("every byte of every record arrives, and none behind it") {
  constexpr int64_t kRoom = 1 << 20;
  const Pinned from(3 * kRoom);
  std::mt19937 rng(5);
  for (const int records : {0, 1, 2, 3, 9}) {
    INFO(records);
    DeviceArray<uint8_t> to(static_cast<size_t>((records + 1) * kRoom));
    std::vector<RecordCopy> copies;
    for (int r = 0; r < records; ++r) {
      // Less than a piece, whole pieces, and pieces and a rest.
      const int64_t sizes[] = {16, 4096 + 16, 8192, 5 * 8192, 8192 + 16, kRoom - 16, kRoom};
      const int64_t bytes = sizes[rng() % std::size(sizes)];
      const int64_t at = static_cast<int64_t>(rng() % (2 * kRoom / 16)) * 16;
      copies.push_back({from.mapped() + at, to.get() + r * kRoom, bytes});
    }
    copies.resize(static_cast<size_t>(records) + 1);
    const DeviceArray<RecordCopy> list(copies);
    const DeviceArray<int32_t> count(std::vector<int32_t>{records});
    REQUIRE(cuda::LaunchCopyRecords(list.get(), count.get(), nullptr) == 0);
    const std::vector<uint8_t> arrived = to.Get();
    for (int r = 0; r < records; ++r) {
      const RecordCopy& copy = copies[static_cast<size_t>(r)];
      const uint8_t* const there = arrived.data() + r * kRoom;
      CHECK(std::memcmp(there, from.data() + (copy.from - from.mapped()),
                        static_cast<size_t>(copy.bytes)) == 0);
      CHECK(std::all_of(there + copy.bytes, there + kRoom, [](uint8_t b) { return b == 0xff; }));
    }
  }
}

// gpu.copy_records_test [rates]
TEST_CASE("rates beside the copy engine", "[.][rates]") {
  constexpr int64_t kMost = int64_t{256} << 20;
  const Pinned from(kMost);
  DeviceArray<uint8_t> to(kMost);
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  std::printf("record, KiB | records | copying CTAs, GB/s (us) | copy engine, GB/s (us)\n");
  for (const int64_t bytes : {int64_t{256} << 10, int64_t{1} << 20, int64_t{2304} << 10,
                              int64_t{4608} << 10, int64_t{9} << 20}) {
    for (const int records : {1, 2, 8}) {
      const auto sets = static_cast<int>(std::min<int64_t>(48, kMost / (bytes * records)));
      std::vector<RecordCopy> copies;
      for (int i = 0; i < sets * records; ++i) {
        copies.push_back({from.mapped() + i * bytes, to.get() + i * bytes, bytes});
      }
      const DeviceArray<RecordCopy> list(copies);
      const DeviceArray<int32_t> count(std::vector<int32_t>{records});
      const double ours = Microseconds(stream, [&](int i) {
        REQUIRE(cuda::LaunchCopyRecords(list.get() + i % sets * records, count.get(), stream) == 0);
      });
      const double engine = Microseconds(stream, [&](int i) {
        for (int r = 0; r < records; ++r) {
          const RecordCopy& copy = copies[static_cast<size_t>(i % sets * records + r)];
          REQUIRE(cudaMemcpyAsync(copy.to, from.data() + (copy.from - from.mapped()),
                                  static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                  stream) == cudaSuccess);
        }
      });
      const double gb = static_cast<double>(bytes * records) / 1e3;
      std::printf("%lld | %d | %.1f (%.1f) | %.1f (%.1f)\n", static_cast<long long>(bytes >> 10),
                  records, gb / ours, ours, gb / engine, engine);
    }
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace moert::test
