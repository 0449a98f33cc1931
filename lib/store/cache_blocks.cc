#include "store/cache_blocks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/errors.h"
#include "moert/scheme.h"

namespace moert {
namespace {

constexpr size_t kMostSizes = 64;
constexpr int64_t kCopyWord = 16;  // bytes that the device's copies move at once

/// The stride of slots on a device, a multiple of what the host's kernels ask for. Slots begin at a
/// page if that costs little memory, else at the largest alignment that does.
int64_t DeviceSlotBytes(int64_t bytes, int64_t multiple) {
  constexpr int64_t kLittle = 128;  // at most bytes / kLittle
  for (int64_t unit = kRecordAlignment; unit > kCopyWord; unit /= 2) {
    const int64_t slot = RoundUp(bytes, std::lcm(unit, multiple));
    if (slot - bytes <= bytes / kLittle) return slot;
  }
  return RoundUp(bytes, std::lcm(kCopyWord, multiple));
}

/// Rounds sizes up to the smallest unit that leaves at most kMostSizes different ones.
std::vector<int64_t> FewSizes(std::vector<int64_t> bytes) {
  for (int64_t unit = kRecordAlignment;; unit *= 2) {
    std::vector<int64_t> sizes = bytes;
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    if (sizes.size() <= kMostSizes) return bytes;
    for (int64_t& size : bytes) size = RoundUp(size, unit);
  }
}

/// One class per value of `key`, in the order of the values.
BlockSizes InClasses(const std::vector<int64_t>& bytes, const std::vector<int64_t>& key) {
  std::map<int64_t, BlockClass> classes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    BlockClass& c = classes[key[i]];
    c.bytes = std::max(c.bytes, bytes[i]);
    ++c.count;
  }
  std::vector<BlockClass> list;
  std::map<int64_t, int32_t> number;
  for (const auto& [value, c] : classes) {
    number[value] = static_cast<int32_t>(list.size());
    list.push_back(c);
  }
  std::vector<int32_t> class_of;
  for (const int64_t value : key) class_of.push_back(number[value]);
  return BlockSizes(std::move(list), std::move(class_of));
}

}  // namespace

absl::Status CheckBlockBytes(const ExpertSource& source) {
  constexpr int64_t kMostBytes = int64_t{1} << 60;
  constexpr int64_t kMostSpare = int64_t{1} << 20;
  const MoeModelSpec& model = source.model();
  int64_t largest = 0;
  std::optional<int64_t> multiple = kRecordAlignment;
  for (int v = 0; v < source.num_versions(); ++v) {
    for (int l = 0; l < model.num_layers(); ++l) {
      for (int e = 0; e < model.layers[l].num_experts; ++e) {
        const RecordLayout& layout = source.layout(l, e, v);
        largest = std::max(largest, layout.bytes);
        if (!multiple || *multiple % layout.slot_multiple == 0) continue;
        multiple =
            CheckedMul(*multiple / std::gcd(*multiple, layout.slot_multiple), layout.slot_multiple);
      }
    }
  }
  const auto bytes = Checked<int64_t>(largest)
                         .RoundUp(multiple.value_or(0))
                         .Mul(model.total_experts() + kMostSpare)
                         .value();
  if (bytes && *bytes <= kMostBytes) return absl::OkStatus();
  return InvalidArgument(
      "{}: {} experts of up to {} bytes, in blocks that are multiples of every part's "
      "stride_multiple, take too many bytes to count: legal is up to {}",
      source.name(), model.total_experts(), largest, kMostBytes);
}

int64_t BlockBytes(const RecordLayout& layout) {
  return RoundUp(layout.bytes, std::lcm(kRecordAlignment, layout.slot_multiple));
}

int64_t SlotsOf(int64_t bytes, int64_t all_bytes, int64_t total) {
  if (bytes >= all_bytes) return total;
  // bytes * total / all_bytes, with no overflow.
  const int64_t mean = all_bytes / total, rest = all_bytes % total;
  int64_t slots = bytes / std::max<int64_t>(1, mean);
  while (slots > 0 && slots * mean + slots * rest / total > bytes) --slots;
  return std::min(slots, total);
}

BlockSizes BlocksOfVersions(const ExpertSource& source, absl::Span<const int> versions) {
  const MoeModelSpec& model = source.model();
  std::vector<int64_t> bytes;
  for (const int version : versions) {
    for (int l = 0; l < model.num_layers(); ++l) {
      for (int e = 0; e < model.layers[l].num_experts; ++e) {
        bytes.push_back(BlockBytes(source.layout(l, e, version)));
      }
    }
  }
  return InClasses(bytes, bytes);
}

CacheBlocks MeasureCacheBlocks(const ExpertSource& source, absl::Span<const int> versions,
                               BlockKind kind) {
  const MoeModelSpec& model = source.model();
  std::vector<int64_t> bytes, layers;
  int64_t multiple = 1, record = 0;
  for (int l = 0; l < model.num_layers(); ++l) {
    for (int e = 0; e < model.layers[l].num_experts; ++e) {
      int64_t most = 0;
      for (const int version : versions) {
        const RecordLayout& layout = source.layout(l, e, version);
        most = std::max(most, BlockBytes(layout));
        multiple = std::lcm(multiple, layout.slot_multiple);
        record = std::max(record, layout.bytes);
      }
      bytes.push_back(most);
      layers.push_back(l);
    }
  }
  const auto total = static_cast<int64_t>(bytes.size());
  const bool opaque = source.layout(0, 0, versions[0]).opaque();
  if (kind == BlockKind::kClasses && !opaque) bytes = FewSizes(std::move(bytes));
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  if (kind != BlockKind::kClasses || (*least == *most && !opaque)) {
    const int64_t alike = kind == BlockKind::kDevice && opaque
                              ? DeviceSlotBytes(record, multiple)
                              : RoundUp(*most, std::lcm(kRecordAlignment, multiple));
    return {BlockSizes(alike, total), alike, alike * total};
  }
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const int64_t largest = *most;
  return {InClasses(bytes, opaque ? layers : bytes), largest, all};
}

}  // namespace moert
