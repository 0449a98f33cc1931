// moert-bench gemm: MixedGroupGemm on random experts, on the CPU (gemm_cpu.cc) or a device
// (gemm_device.cc).
#include "cli/bench/gemm.h"

#include <vector>

#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/common/args.h"
#include "cli/common/report.h"
#include "moert/mixed_group_gemm.h"
#include "util/status_macros.h"

namespace moert::cli {

absl::StatusOr<std::vector<Scheme>> SchemesOf(const GemmOptions& options) {
  if (options.schemes == "all") return Scheme::All();
  std::vector<Scheme> schemes;
  for (const absl::string_view name : absl::StrSplit(options.schemes, ',')) {
    MOERT_ASSIGN_OR_RETURN(const Scheme scheme, Scheme::Parse(name));
    schemes.push_back(scheme);
  }
  return schemes;
}

int BenchGemm(int argc, const char* const* argv) {
  GemmOptions o;
  ArgParser parser("moert-bench gemm", "weight streaming and arithmetic rates of expert products");
  std::vector<std::string> names = MixedGroupGemm::KernelNames();
  names.insert(names.begin(), {"all", "auto"});
  parser.AddChoice("backend", &o.backend, {"cpu", "cuda"}, "where the experts execute");
  parser.AddChoice("kernels", &o.kernels, names, "kernel sets; all leaves out the reference");
  parser.AddChoice("numerics", &o.numerics, {"bf16", "f32", "int8", "fp8"},
                   "how activations enter the product");
  parser.AddString("schemes", &o.schemes, "schemes of the weights, comma-separated, or all");
  parser.AddInt("hidden", &o.hidden, "hidden size", 1, 1 << 20);
  parser.AddInt("intermediate", &o.intermediate, "intermediate size", 1, 1 << 20);
  parser.AddInt("experts-per-call", &o.experts_per_call, "experts a call", 1, 1024);
  parser.AddIntList("tokens", &o.tokens, "tokens an expert", 1);
  parser.AddIntList("batch", &o.batch, "tokens a layer call, routed at random; replaces --tokens",
                    1);
  parser.AddInt("experts", &o.experts, "experts a layer, with --batch", 1, 4096);
  parser.AddInt("used", &o.used, "experts a token, with --batch", 1, 4096);
  parser.AddString("shape", &o.shapes, "cuda: shapes of published models, comma-separated");
  parser.AddString("zipf", &o.zipf,
                   "cuda: exponents of the experts' popularity, comma-separated; 0: all alike");
  parser.AddString("plan", &o.plans,
                   "cuda: plans of moert-pack allocate for that shape, beside the schemes, "
                   "comma-separated");
  parser.AddInt("layers", &o.layers, "cuda: copies of the layer's weights, in turn", 1, 256);
  parser.AddSwitch("hadamard", &o.hadamard, "cuda: weights in the Hadamard domain");
  parser.AddChoice("rows", &o.rows, {"bf16", "f32"}, "cuda: dtype of hidden states and outputs");
  parser.AddChoice("products", &o.products, {"auto", "few", "prompts"},
                   "cuda: kernels for few tokens or for prompts; auto: as the engine chooses");
  parser.AddSize("bytes", &o.bytes, "at least so many bytes of experts, in turn");
  parser.AddInt("threads", &o.threads, "threads, 0: one per CPU", 0, 4096);
  parser.AddInt("repeats", &o.repeats, "passes over all experts", 1, 1000);
  parser.AddChoice("clock", &o.clock, {"wall", "cpu"},
                   "what times are counted in: cpu is processor time over "
                   "threads, for a machine "
                   "that others use");
  parser.AddJson(&o.json);
  parser.AddOutput("plot", &o.plot, "draws the figures: FILE.svg, .png or .pdf (matplotlib)");
  parser.AddSwitch("quiet", &o.quiet, "no table");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  absl::Status status;
  const std::string command = "moert-bench gemm " + CommandLine(argc, argv);
  if (status.ok()) {
    status = o.backend == "cuda" ? RunGemmOnDevice(o, command) : RunGemmOnCpu(o, command);
  }
  return status.ok() ? kExitOk : ReportError("moert-bench gemm", status);
}

}  // namespace moert::cli
