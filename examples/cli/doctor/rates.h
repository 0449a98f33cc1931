// How fast this machine is at what decoding does, measured in a few seconds.
#ifndef MOERT_EXAMPLES_CLI_DOCTOR_RATES_H_
#define MOERT_EXAMPLES_CLI_DOCTOR_RATES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "cli/doctor/model_facts.h"
#include "cli/probe/device.h"

namespace moert::cli {

/// Bytes a second where nothing else is said. 0: not measured, or not there.
struct Rates {
  double memory = 0;                      // all threads read
  double dense = 0;                       // the host's products of one token, bytes of bf16
  std::map<std::string, double> experts;  // the CPU's products of one token, by scheme
  double layer_s = 0;                     // seconds of a MoE layer on the CPU beside products
  double disk = 0;                        // 4 reads of 1 MiB at once, past the page cache
  absl::StatusOr<DeviceRates> device = absl::UnavailableError("not asked for");
};

/// The scheme in which libmoert would multiply `as`: its own, or for a type of a GGUF one of about
/// as many bits.
std::string MeasuredScheme(const ModelFacts& facts, const ExpertsAs& as);

/// `file`: a large file on the disk that experts will be read from, empty: none. Takes about a
/// second for each rate. `memory`: bytes that may be used for it.
Rates MeasureRates(const ModelFacts* facts, const std::string& file, int64_t memory,
                   double seconds);

}  // namespace moert::cli

#endif  // MOERT_EXAMPLES_CLI_DOCTOR_RATES_H_
