#include "cli/doctor/rates.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "cli/probe/parts.h"
#include "cli/workload/shapes.h"
#include "moert/thread_pool.h"
#include "moert/tools/env.h"
#include "util/aligned_buffer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr int kReaders = 4;

// Bytes a second of reads of 1 MiB past the page cache, four at a time, as experts are read.
absl::StatusOr<double> FileRate(const std::string& path, double seconds) {
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kDirect));
  const int64_t blocks = file->size() / kReadBytes;
  if (blocks < 16) return absl::NotFoundError(path + ": too small to be measured");
  if (const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  std::atomic<int64_t> next{0}, failed{0};
  const auto begin = std::chrono::steady_clock::now();
  const auto took = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<std::jthread> readers;
  for (int t = 0; t < kReaders; ++t) {
    readers.emplace_back([&] {
      util::AlignedBuffer buffer;
      if (!buffer.Reset(kReadBytes).ok()) return void(++failed);
      while (took() < seconds) {
        // Far apart, so that nothing reads ahead.
        const int64_t block = next++;
        if (block >= blocks) return;
        const int64_t place = (block * 7919) % blocks;
        if (!file->Read(place * kReadBytes, absl::MakeSpan(buffer.data(), kReadBytes)).ok()) {
          return void(++failed);
        }
      }
    });
  }
  readers.clear();  // joins them
  if (failed > 0) return absl::UnavailableError(path + ": reading failed");
  return static_cast<double>(std::min(next.load(), blocks) * kReadBytes) / took();
}

// Seconds of a layer call of one token beside products: routing, planning, combination. Experts are
// narrow, as their products do not count; at most `most` bytes of them.
absl::StatusOr<double> LayerSeconds(const ModelFacts& facts, int64_t most, double seconds) {
  MOERT_ASSIGN_OR_RETURN(Shape shape, ParseShape("qwen3-30b:1"));
  MoeLayerSpec& layer = shape.spec.layers.front();
  layer.num_experts = static_cast<int>(facts.experts);
  layer.hidden = facts.hidden;
  layer.intermediate = 64;
  layer.routing.top_k = static_cast<int>(facts.top_k);
  if (facts.experts * facts.hidden * layer.intermediate * 3 * 2 > most) {
    return absl::ResourceExhaustedError("no memory for a layer of narrow experts");
  }
  MOERT_ASSIGN_OR_RETURN(
      const LayerOverhead overhead,
      ProbeLayer(shape, /*threads=*/0, /*attention_ns=*/0, /*repeats=*/20, Until(seconds)));
  return 1e-9 * overhead.call_ns;
}

}  // namespace

std::string MeasuredScheme(const ModelFacts& facts, const ExpertsAs& as) {
  if (facts.kind != ModelKind::kGguf) return as.scheme;
  const double weights = 3.0 * static_cast<double>(facts.hidden) *
                         static_cast<double>(facts.intermediate) *
                         static_cast<double>(facts.experts) * facts.moe_layers;
  const double bits = 8 * static_cast<double>(as.bytes) / std::max(weights, 1.0);
  return bits > 12    ? "bf16"
         : bits > 6.2 ? "w8a16_g128"
         : bits > 3.8 ? "w4a16_g128"
         : bits > 2.8 ? "w3a16_g128_asym"
                      : "w2a16_g64_asym";
}

Rates MeasureRates(const ModelFacts* facts, const std::string& file, int64_t memory,
                   double seconds) {
  Rates rates;
  rates.device = ProbeDeviceRates(seconds / 2);
  if (!file.empty()) rates.disk = FileRate(file, seconds).value_or(0);
  const auto pool = CreateThreadPool({});
  if (facts == nullptr || !pool.ok()) return rates;
  const int64_t most = std::min<int64_t>(memory / 4, int64_t{512} << 20);
  rates.memory = ReadRate(pool->get(), most, seconds).value_or(0);
  rates.layer_s = LayerSeconds(*facts, most, seconds).value_or(0);
  rates.dense = DenseRate(pool->get(), facts->hidden, most, seconds).value_or(0);
  for (const ExpertsAs& as : facts->schemes) {
    const std::string scheme = MeasuredScheme(*facts, as);
    ExpertRateOptions options{facts->hidden, facts->intermediate, scheme, facts->top_k, most,
                              seconds};
    rates.experts[as.scheme] = ExpertRate(pool->get(), options).value_or(0);
  }
  return rates;
}

}  // namespace moert::cli
