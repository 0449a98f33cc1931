// Measuring a model over calibration tokens: streaming, on several threads, resumable.
#ifndef MOERT_OFFLINE_CALIBRATE_H_
#define MOERT_OFFLINE_CALIBRATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "moert/backend.h"
#include "moert/offline/calibration_model.h"
#include "moert/offline/quantize.h"
#include "moert/offline/token_file.h"
#include "moert/scheme.h"

namespace moert {

struct CalibrateJob {
  std::string model = {};  // directory of a Hugging Face checkpoint
  std::string out = {};    // the calibration file to write (moert/offline/calibration.h)
  std::vector<std::string> token_files = {};  // moert/offline/token_file.h
  TokenReader read_tokens = {};               // null: ReadTokenFile
  int64_t tokens = 65536;                     // tokens used of those files together; 0: all
  int64_t window = 512;                       // tokens per sequence
  std::vector<Scheme> schemes = {};           // candidates to measure
  QuantMethod method = QuantMethod::kGptq;    // the method that quantizes them
  bool hadamard = false;                      // in the block Hadamard domain
  /// Tokens, rounded up to windows, over which the end-to-end loss of every layer's errors is
  /// measured; 0: it is not.
  int64_t probe_tokens = 6144;
  int threads = 0;  // 0: one per core
  /// The backend that searches for scales; the outcome is the same. kCuda fails without a device.
  BackendKind backend = BackendKind::kAuto;
  /// Runs the rest of the model. Required.
  OpenCalibrationModel open_model = {};
  /// Experts done and to do. May be null.
  std::function<void(int64_t done, int64_t total)> progress = {};
  /// A line for people. May be null.
  std::function<void(const std::string& line)> log = {};
  /// Asked before each expert; true ends the job with Cancelled and leaves the same files as any
  /// interruption. Called from several threads. May be null.
  std::function<bool()> cancelled = {};
};

/// Writes job.out. Layers that an interrupted job completed lie in `<out>.partial` and are not
/// measured again. AlreadyExists if there is a file; FailedPrecondition if another process is
/// writing it.
absl::Status RunCalibrateJob(const CalibrateJob& job);

}  // namespace moert

#endif  // MOERT_OFFLINE_CALIBRATE_H_
