// A device for tests that leaves everything to the CPU, but for what they override.
#ifndef MOERT_TESTS_UNIT_OFFLINE_IDLE_DEVICE_H_
#define MOERT_TESTS_UNIT_OFFLINE_IDLE_DEVICE_H_

#include <memory>
#include <optional>
#include <vector>

#include "offline/offline_device.h"

namespace moert::test {

class IdleDevice : public OfflineDevice {
 public:
  std::vector<GroupScale> Rtn(const MatrixLayout&, absl::Span<const float>,
                              const RtnOptions&) override {
    return {};
  }
  std::vector<GroupScale> Hqq(const MatrixLayout&, absl::Span<const float>,
                              const HqqOptions&) override {
    return {};
  }
  std::optional<QuantizedMatrix> Gptq(const MatrixLayout&, absl::Span<const float>,
                                      const GptqFactor&, const GptqOptions&) override {
    return std::nullopt;
  }
  std::unique_ptr<DeviceExpert> Expert(const MoeLayerSpec&, int64_t) override { return nullptr; }
  absl::Status AddExperts(const BlockRows&, const ExpertReader&, ThreadPool*,
                          std::vector<uint8_t>*) override {
    return absl::OkStatus();
  }
  absl::Status first_error() const override { return absl::OkStatus(); }
};

}  // namespace moert::test

#endif  // MOERT_TESTS_UNIT_OFFLINE_IDLE_DEVICE_H_
