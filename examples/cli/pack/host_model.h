// The example decoder as what calibration and quantization need of a host.
#ifndef MOERT_EXAMPLES_CLI_PACK_HOST_MODEL_H_
#define MOERT_EXAMPLES_CLI_PACK_HOST_MODEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "host/device_products.h"
#include "host/model.h"
#include "moert/backend.h"
#include "moert/offline/calibration_model.h"
#include "moert/offline/token_file.h"

namespace moert::cli {

/// The decoder's matrix product, and a device for those of many rows. Where the device fails the
/// threads multiply, with the same result but for rounding.
class HostProducts final : public MatrixProducts {
 public:
  /// `device` is borrowed; null: all on the CPU.
  explicit HostProducts(host::DeviceProducts* device = nullptr) : device_(device) {}
  void Multiply(ThreadPool* pool, const float* w, int64_t out, int64_t in, const float* x,
                int64_t rows, float* y) override;

 private:
  host::DeviceProducts* const device_;
};

/// `device` is borrowed, may be null. Sequences of at most `window` tokens.
std::unique_ptr<CalibrationModel> MakeHostModel(std::unique_ptr<host::Decoder> decoder,
                                                host::DeviceProducts* device, int64_t window);

/// Parses "cpu", "cuda" or "auto".
BackendKind BackendOf(const std::string& backend);

/// The device that `backend` asks for: null for "cpu", and for "auto" without a usable one, of
/// which *note then says why. An error where "cuda" cannot be had.
absl::StatusOr<std::unique_ptr<host::DeviceProducts>> OpenProducts(const std::string& backend,
                                                                   int threads, std::string* note);

/// Says on stderr what the device refused, if anything.
void NoteRefusals(const host::DeviceProducts& device);

/// Reads calibration tokens as host::ReadTokens does.
TokenReader HostTokenReader(const std::string& model);

/// Opens the decoder of a checkpoint. `device` is borrowed, may be null.
OpenCalibrationModel HostModelOpener(host::DeviceProducts* device);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_PACK_HOST_MODEL_H_
