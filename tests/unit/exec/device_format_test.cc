// Experts that the CUDA backend cannot multiply are refused by name before any is read.
#include "exec/cuda/memory/device_format.h"

#include "support/catch.h"
#include "support/synthetic_source.h"

namespace moert {
namespace {

using test::SyntheticShape;
using test::SyntheticSource;

/// One expert of its last layer has matrices in other schemes.
class OneOther : public SyntheticSource {
 public:
  explicit OneOther(const ExpertFormat& format)
      : SyntheticSource(SyntheticShape{2, 4, 2, 256, 128}),
        other_(*MakeRecordLayout(256, 128, format)) {}
  const RecordLayout& layout(int layer, int expert, int version) const override {
    return layer == 1 && expert == 3 ? other_ : SyntheticSource::layout(layer, expert, version);
  }

 private:
  RecordLayout other_;
};

std::string Refusal(const ExpertFormat& format) {
  const absl::Status status = cuda::CheckDeviceFormats(OneOther(format), {0});
  CHECK((status.ok() || status.code() == absl::StatusCode::kUnimplemented));
  return std::string(status.message());
}

TEST_CASE("gate and up in two schemes: the expert, both schemes and the ways that work") {
  const Scheme w4 = *Scheme::Parse("w4a16_g128");
  CHECK(Refusal({.gate = w4, .up = w4, .down = {}}).empty());
  const std::string mixed = Refusal({.gate = w4, .up = {}, .down = w4});
  for (const char* part : {"layer 1, expert 3", "gate in w4a16_g128", "up in bf16", "widen",
                           "--as SCHEME", "--backend cpu"}) {
    CHECK_THAT(mixed, Catch::Contains(part));
  }
}

}  // namespace
}  // namespace moert
