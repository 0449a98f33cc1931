#include "callback_source.h"

#include <utility>

#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "guard.h"

namespace moert::capi {
namespace {

static_assert(static_cast<int32_t>(WeightPart::kRecord) == MOERT_PART_RECORD);
static_assert(static_cast<int32_t>(WeightPart::kDownBias) == MOERT_PART_DOWN_BIAS);
static_assert(static_cast<int32_t>(WeightPart::kRouter) == MOERT_PART_ROUTER);
static_assert(static_cast<int32_t>(DType::kF16) == MOERT_F16);
static_assert(static_cast<int32_t>(DType::kU8) == MOERT_U8);
static_assert(static_cast<int32_t>(DType::kI32) == MOERT_I32);
static_assert(kSharedExpert == MOERT_SHARED_EXPERT);

/// Calls destroy with the last reference, once it owns user_data.
struct Callbacks {
  moert_source_callbacks c{};
  bool owns = false;

  ~Callbacks() {
    if (owns && c.destroy != nullptr) c.destroy(c.user_data);
  }
};

absl::Status Read(const Callbacks& callbacks, const WeightRead& cpp) {
  const moert_read read = ToC(cpp);
  moert_failure failure;
  const moert_code code = callbacks.c.read(callbacks.c.user_data, &read, &failure);
  return FromCallback(code, failure, "read callback");
}

}  // namespace

moert_read ToC(const WeightRead& cpp) {
  moert_read read{};
  read.struct_size = sizeof(read);
  read.layer = cpp.layer;
  read.expert = cpp.expert;
  read.part = static_cast<moert_part>(cpp.part);
  read.version = cpp.version;
  read.first_row = cpp.first_row;
  moert_tensor_init(&read.dst, cpp.dst, cpp.rows, cpp.cols, static_cast<moert_dtype>(cpp.dtype));
  return read;
}

absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeCallbackSource(
    std::string name, MoeModelSpec model, const moert_source_callbacks& callbacks) {
  if (callbacks.read == nullptr) {
    return absl::InvalidArgumentError("callbacks.read: must not be NULL");
  }
  if (callbacks.weights_dtype != MOERT_F32 && callbacks.weights_dtype != MOERT_BF16 &&
      callbacks.weights_dtype != MOERT_F16) {
    return Illegal("callbacks.weights_dtype is ", callbacks.weights_dtype,
                   ", legal is MOERT_F32, MOERT_BF16 or MOERT_F16");
  }
  if (callbacks.pinned_record != nullptr && callbacks.schemes == nullptr) {
    return absl::InvalidArgumentError(
        "callbacks.pinned_record: records lie in memory only where callbacks.schemes names them");
  }
  auto shared = std::make_shared<Callbacks>();
  shared->c = callbacks;
  HostWeights weights;
  weights.read = [shared](const WeightRead& read) { return Read(*shared, read); };
  weights.dtype = static_cast<DType>(callbacks.weights_dtype);
  if (callbacks.schemes != nullptr) weights.schemes = absl::StrSplit(callbacks.schemes, ',');
  if (callbacks.pinned_record != nullptr) {
    weights.pinned_record = [shared](int layer, int expert, int version) {
      const moert_source_callbacks& c = shared->c;
      return static_cast<const std::byte*>(c.pinned_record(c.user_data, layer, expert, version));
    };
  }
  shared->c.schemes = nullptr;  // the caller's
  MOERT_ASSIGN_OR_RETURN(std::unique_ptr<ExpertSource> source,
                         MakeHostSource(std::move(name), std::move(model), std::move(weights)));
  shared->owns = true;
  return std::shared_ptr<const ExpertSource>(std::move(source));
}

}  // namespace moert::capi
