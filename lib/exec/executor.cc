#include "exec/executor.h"

#include "absl/strings/string_view.h"
#include "base/fmt_absl.h"
#include "base/status_macros.h"
#include "fmt/format.h"

namespace moert {

absl::Status Executor::Check(const ExecutorCall& call, const MoeLayerSpec& layer,
                             bool /*routed*/) const {
  const auto check = [&](absl::string_view what, const auto& view) -> absl::Status {
    if (view.data == nullptr || view.rows != call.tokens || view.cols != layer.hidden ||
        view.row_stride < view.cols) {
      return absl::InvalidArgumentError(fmt::format(
          "{}: [{}, {}] with row stride {}{}; layer {} of this step takes [{}, {}]", what,
          view.rows, view.cols, view.row_stride, view.data == nullptr ? " at null" : "", call.layer,
          call.tokens, layer.hidden));
    }
    if (view.dtype != DType::kF32 && view.dtype != DType::kBF16 && view.dtype != DType::kF16) {
      return absl::InvalidArgumentError(
          fmt::format("{}: dtype {}; legal: f32, bf16, f16", what, DTypeName(view.dtype)));
    }
    return absl::OkStatus();
  };
  MOERT_RETURN_IF_ERROR(check("hidden", call.hidden));
  return check("out", call.out);
}

absl::Status Executor::NotSupported() {
  return absl::InternalError("the executor was asked for a capability that it does not have");
}

}  // namespace moert
