// The parts of a model that are no experts: the host's own products.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cli/probe/parts.h"
#include "cli/probe/read_bandwidth.h"
#include "host/blocks/panel_gemm.h"
#include "util/aligned_buffer.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// The median rate of `pass`, which reads so many bytes, repeated for so many seconds.
template <typename Pass>
double MedianRate(int64_t bytes, double seconds, const Pass& pass) {
  std::vector<double> samples;
  const auto begin = Clock::now();
  std::chrono::duration<double> all{};
  do {
    const auto start = Clock::now();
    pass();
    const std::chrono::duration<double> took = Clock::now() - start;
    samples.push_back(static_cast<double>(bytes) / std::max(took.count(), 1e-9));
    all = Clock::now() - begin;
  } while (all.count() < seconds);
  return SpreadOf(samples).median;
}

}  // namespace

absl::StatusOr<double> ReadRate(ThreadPool* pool, int64_t bytes, double seconds) {
  util::AlignedBuffer data;
  MOERT_RETURN_IF_ERROR(data.Reset(bytes));
  std::memset(data.data(), 1, static_cast<size_t>(bytes));
  return MedianRate(bytes, seconds, [&] { (void)ReadBandwidth(pool, data.data(), bytes); });
}

absl::StatusOr<double> DenseRate(ThreadPool* pool, int64_t k, int64_t bytes, double seconds) {
  const int64_t panel_bytes = k * host::kPanelWidth * 2;
  const int64_t panels = std::max<int64_t>(1, bytes / panel_bytes);
  util::AlignedBuffer weights, x, y;
  MOERT_RETURN_IF_ERROR(weights.Reset(panels * panel_bytes));
  MOERT_RETURN_IF_ERROR(x.Reset(k * 4));
  MOERT_RETURN_IF_ERROR(y.Reset(panels * host::kPanelWidth * 4));
  std::memset(weights.data(), 0x3c, static_cast<size_t>(panels * panel_bytes));
  std::memset(x.data(), 0, static_cast<size_t>(k * 4));
  constexpr int64_t kPanelsAJob = 8;
  const auto pass = [&] {
    pool->Run((panels + kPanelsAJob - 1) / kPanelsAJob, [&](int64_t job, int) {
      const int64_t first = job * kPanelsAJob;
      host::PanelGemm gemm{};
      gemm.x = reinterpret_cast<const float*>(x.data());
      gemm.x_stride = gemm.k = k;
      gemm.rows = 1;
      gemm.panels = weights.data() + first * panel_bytes;
      gemm.panel_stride = k * host::kPanelWidth;
      gemm.num_panels = std::min(kPanelsAJob, panels - first);
      gemm.y = reinterpret_cast<float*>(y.data()) + first * host::kPanelWidth;
      gemm.y_stride = panels * host::kPanelWidth;
      host::Panel().bf16(gemm);
    });
  };
  return MedianRate(panels * panel_bytes, seconds, pass);
}

}  // namespace moert::cli
