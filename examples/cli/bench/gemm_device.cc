// moert-bench gemm --backend cuda: layers of a --shape on a device, called with batches of --batch
// tokens that are routed at random (gemm_cuda.h).
#include <fmt/format.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "cli/bench/commit.h"
#include "cli/bench/gemm.h"
#include "cli/bench/gemm_cuda.h"
#include "cli/common/output.h"
#include "cli/common/plot.h"
#include "cli/common/report.h"
#include "moert/offline/plan.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

void PrintCudaCase(const GemmCudaCase& c) {
  const double rate = c.bytes / c.products.median * 1e-3;  // GB/s
  Print("{:<12} {:<18}{:>6}{:>6.1f}{:>9.1f}{:>10.1f} {:<18}{:>8.0f}{:>7.1f}%{:>9.1f}{:>10.1f}\n",
        c.shape, c.scheme, c.tokens, c.zipf, c.experts, c.products.median,
        fmt::format("({:.1f} .. {:.1f})", c.products.min, c.products.max), rate,
        100 * rate / c.copy_gbps.median, c.flops / c.products.median * 1e-6, c.layer.median);
  std::fflush(stdout);
}

void PrintHead(const GemmCudaOptions& o, const std::string& command,
               const nlohmann::json& machine) {
  Print("machine  {}, CUDA {} (driver {})\n", machine["device"].get<std::string>(),
        machine["cuda_runtime"].get<std::string>(), machine["cuda_driver"].get<std::string>());
  Print("command  {}\n", command);
  Print("         {} layers of weights in turn, in a CUDA graph, median of {} replays\n\n",
        o.layers, o.repeats);
  Print("{:<12} {:<18}{:>6}{:>6}{:>9}{:>10} {:<18}{:>8}{:>8}{:>9}{:>10}\n", "shape", "scheme",
        "tokens", "zipf", "experts", "GEMMs us", "(min .. max)", "GB/s", "of copy", "TFLOP/s",
        "layer us");
}

nlohmann::json CaseJson(const GemmCudaCase& c) {
  return {{"shape", c.shape},
          {"scheme", c.scheme},
          {"tokens", c.tokens},
          {"zipf", c.zipf},
          {"experts", c.experts},
          {"weight_bytes", c.bytes},
          {"gemms_us", ToJson(c.products)},
          {"layer_us", ToJson(c.layer)},
          {"copy_gbps", ToJson(c.copy_gbps)},
          {"of_copy", c.bytes / c.products.median * 1e-3 / c.copy_gbps.median},
          {"tflops", c.flops / c.products.median * 1e-6}};
}

/// A plan's version, which must be of this shape.
absl::StatusOr<PackVersion> PlannedVersion(const std::string& path, const Shape& shape) {
  MOERT_ASSIGN_OR_RETURN(Plan plan, ReadPlan(path, Env::Default()));
  const MoeLayerSpec& want = shape.spec.layers.front();
  for (const MoeLayerSpec& l : plan.model.layers) {
    if (l.num_experts == want.num_experts && l.hidden == want.hidden &&
        l.intermediate == want.intermediate) {
      continue;
    }
    return absl::InvalidArgumentError(
        fmt::format("{}: a plan for another shape, {} of {} x {} a layer; {} has {} of {} x {}",
                    path, l.num_experts, l.hidden, l.intermediate, shape.name, want.num_experts,
                    want.hidden, want.intermediate));
  }
  return std::move(plan.version);
}

absl::StatusOr<GemmCudaOptions> DeviceOptions(const GemmOptions& options) {
  GemmCudaOptions o;
  for (const absl::string_view name : absl::StrSplit(options.shapes, ',')) {
    MOERT_ASSIGN_OR_RETURN(Shape shape, ParseShape(name));
    o.shapes.push_back(std::move(shape));
  }
  MOERT_ASSIGN_OR_RETURN(const std::vector<Scheme> schemes, SchemesOf(options));
  for (const Scheme& s : schemes) {
    o.versions.push_back(PackVersion::Uniform(s, options.hadamard));
    if (options.hadamard) o.versions.back().name += "+hadamard";
  }
  for (const absl::string_view path : absl::StrSplit(options.plans, ',', absl::SkipEmpty())) {
    if (o.shapes.size() != 1) {
      return absl::InvalidArgumentError("--plan: needs one --shape, that of the plans");
    }
    MOERT_ASSIGN_OR_RETURN(PackVersion version,
                           PlannedVersion(std::string(path), o.shapes.front()));
    o.versions.push_back(std::move(version));
  }
  for (const absl::string_view text : absl::StrSplit(options.zipf, ',')) {
    double exponent = 0;
    if (!absl::SimpleAtod(text, &exponent) || !(exponent >= 0 && exponent <= 4)) {
      return absl::InvalidArgumentError(
          fmt::format("--zipf {}: exponents from 0 to 4, comma-separated", options.zipf));
    }
    o.zipf.push_back(exponent);
  }
  o.tokens = options.batch.empty() ? std::vector<int>{1, 8, 32, 128, 512, 2048} : options.batch;
  o.layers = options.layers;
  o.repeats = options.repeats;
  o.f32_rows = options.rows == "f32";
  o.products = options.products;
  if (options.numerics == "f32" || options.numerics == "int8") {
    return absl::InvalidArgumentError(
        fmt::format("--numerics {}: a device multiplies bf16 and fp8", options.numerics));
  }
  o.fp8 = options.numerics == "fp8";
  return o;
}

}  // namespace

absl::Status RunGemmOnDevice(const GemmOptions& options, const std::string& command) {
  MOERT_ASSIGN_OR_RETURN(const GemmCudaOptions o, DeviceOptions(options));
  nlohmann::json machine = DescribeMachine();
  nlohmann::json results = nlohmann::json::array();
  std::vector<double> copies;
  MOERT_RETURN_IF_ERROR(BenchGemmCuda(o, &machine, [&](const GemmCudaCase& c) {
    if (!options.quiet && results.empty()) PrintHead(o, command, machine);
    if (!options.quiet) PrintCudaCase(c);
    copies.push_back(c.copy_gbps.median);
    results.push_back(CaseJson(c));
  }));
  const Spread copy = SpreadOf(copies);
  if (!options.quiet) {
    Print("\ncopy within the device, read + written: {:.0f} GB/s ({:.0f} .. {:.0f})\n", copy.median,
          copy.min, copy.max);
  }
  return WriteFigures(options.json, options.plot,
                      {{"command", command},
                       {"commit", BuildCommit()},
                       {"backend", "cuda"},
                       {"machine", machine},
                       {"layers", o.layers},
                       {"rows", options.rows},
                       {"repeats", o.repeats},
                       {"copy_gbps", ToJson(copy)},
                       {"results", results}});
}

}  // namespace moert::cli
