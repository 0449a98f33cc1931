#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/common/args.h"
#include "cli/common/output.h"
#include "cli/common/report.h"
#include "cli/pack/commands.h"
#include "cli/pack/heat_map.h"
#include "moert/offline/allocate.h"
#include "moert/offline/calibration.h"
#include "moert/offline/pack.h"
#include "moert/offline/plan.h"
#include "moert/offline/quantize.h"
#include "util/bytes_text.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

constexpr char kAllocate[] = "moert-pack allocate";

struct AllocateArguments {
  std::string calibration, out, picture, schemes, profile = "h200", granularity = "linear",
                                                  loss = "auto", solver, name, json;
  double bits = 0, gap = 1e-4, seconds = 60;
  int64_t bytes = 0, random_seed = 0;
  bool quiet = false;
  AllocationOptions options;
};

absl::Status WriteText(const std::string& path, const std::string& text) {
  const std::string part = path + ".tmp";
  MOERT_RETURN_IF_ERROR(WriteOutput(part, text));
  std::error_code ec;
  std::filesystem::rename(part, path, ec);
  return ec ? absl::UnavailableError(fmt::format("{}: {}", path, ec.message())) : absl::OkStatus();
}

constexpr std::pair<const char*, LossMeasure> kMeasures[] = {
    {"auto", LossMeasure::kAuto},
    {"delta", LossMeasure::kDelta},
    {"relative", LossMeasure::kRelative},
    {"end-to-end", LossMeasure::kEndToEnd}};

// The plan's loss by all measures, as they are and squared, so that they can be compared.
absl::StatusOr<nlohmann::json> Losses(const AllocateArguments& a, const Calibration& c,
                                      const Allocation& found) {
  nlohmann::json losses;
  for (const auto& [name, measure] : kMeasures) {
    if (measure == LossMeasure::kAuto) continue;
    if (measure == LossMeasure::kEndToEnd && c.probe_tokens == 0) continue;
    for (const double power : {1.0, 2.0}) {
      AllocationOptions options = a.options;
      options.measure = measure;
      options.power = power;
      MOERT_ASSIGN_OR_RETURN(const Allocation predicted, Predict(c, options, found.version));
      losses[name].push_back(predicted.loss);
    }
  }
  return losses;
}

nlohmann::json Summary(const AllocateArguments& a, const Calibration& c, const Allocation& found) {
  const auto weight_of = [](const MoeLayerSpec& l) {
    return static_cast<double>(l.hidden) * static_cast<double>(l.intermediate);
  };
  std::map<std::string, double> shares;
  double total = 0;
  for (int l = 0; l < c.model.num_layers(); ++l) {
    const MoeLayerSpec& layer = c.model.layers[static_cast<size_t>(l)];
    for (int e = 0; e < layer.num_experts; ++e) {
      const ExpertFormat& format = found.version.format(l, e);
      for (const Scheme* s : {&format.gate, &format.up, &format.down}) {
        shares[s->Name()] += weight_of(layer);
        total += weight_of(layer);
      }
    }
  }
  for (auto& [name, share] : shares) share /= total;
  const AllocationOptions& o = a.options;
  return {{"stored_bits", found.stored_bits},
          {"bytes", found.bytes},
          {"capacity", o.capacity},
          {"loss", found.loss},
          {"seconds", found.seconds},
          {"gap", found.gap},
          {"r", o.r},
          {"power", o.power},
          {"measure", a.loss},
          {"granularity", a.granularity},
          {"untied", o.untied},
          {"per_layer", o.per_layer},
          {"batch", o.batch},
          {"cost_table", o.costs.name},
          {"solver", a.solver},
          {"calibration_tokens", c.tokens},
          {"calibration_checksum", c.tokens_checksum},
          {"calibration_method", c.method},
          {"shares", shares}};
}

// The budget counts records padded to their alignment, the allocation counts them without padding:
// lowers its capacity until the result fits.
absl::StatusOr<Allocation> AllocateWithin(const Calibration& c, AllocationOptions o,
                                          int64_t budget) {
  for (o.capacity = budget;;) {
    MOERT_ASSIGN_OR_RETURN(Allocation found, Allocate(c, o));
    MOERT_ASSIGN_OR_RETURN(const VersionSize size, SizeOf(c.model, found.version));
    if (size.held_bytes <= budget) return found;
    o.capacity -= size.held_bytes - budget;
  }
}

// The least that any choice takes: every block in the narrowest scheme.
absl::Status CheckCapacity(const AllocateArguments& a, const Calibration& c) {
  const PackVersion* least = nullptr;
  VersionSize size;
  std::vector<PackVersion> versions;
  for (const Scheme& scheme : a.options.schemes.empty() ? c.schemes : a.options.schemes) {
    versions.push_back(PackVersion::Uniform(scheme));
  }
  for (const PackVersion& version : versions) {
    MOERT_ASSIGN_OR_RETURN(const VersionSize its, SizeOf(c.model, version));
    if (least != nullptr && its.bytes >= size.bytes) continue;
    least = &version;
    size = its;
  }
  if (least == nullptr || size.bytes <= a.options.capacity) return absl::OkStatus();
  const std::string more = fmt::format("give at least that, or calibrate a narrower scheme");
  if (a.bits > 0) {
    return absl::InvalidArgumentError(fmt::format(
        "--bits {}: all experts in {}, the narrowest scheme calibrated, take {:.3f} bits "
        "a weight; {}",
        a.bits, least->name, size.stored_bits(), more));
  }
  return absl::InvalidArgumentError(
      fmt::format("--budget {}: all experts in {}, the narrowest scheme calibrated, take {}; {}",
                  util::BytesText(a.bytes), least->name, util::BytesText(size.held_bytes), more));
}

/// Reads the flags of the allocation into a.options.
absl::Status ReadOptions(const Calibration& c, AllocateArguments& a) {
  AllocationOptions& o = a.options;
  if (a.bits > 0 && a.bytes > 0) {
    return absl::InvalidArgumentError("--bits and --budget exclude each other");
  }
  if (!(a.bits > 0) && a.bytes == 0) {
    return absl::InvalidArgumentError("--bits or --budget must be given");
  }
  o.capacity = a.bits > 0 ? CapacityOf(c.model, a.bits) : a.bytes;
  o.granularity = a.granularity == "linear"   ? Granularity::kLinear
                  : a.granularity == "expert" ? Granularity::kExpert
                                              : Granularity::kLayer;
  if (o.untied && o.granularity != Granularity::kLinear) {
    return absl::InvalidArgumentError("--untied goes with --granularity linear");
  }
  for (const auto& [name, measure] : kMeasures) {
    if (a.loss == name) o.measure = MeasureFor(c, measure);
  }
  for (const auto& [name, measure] : kMeasures) {
    if (o.measure == measure) a.loss = name;
  }
  if (a.random_seed > 0) o.random_seed = static_cast<uint64_t>(a.random_seed);
  if (a.solver.empty()) a.solver = HaveMilp() ? "cbc" : "lagrangian";
  o.solver = a.solver == "cbc" ? AllocationSolver::kMilp : AllocationSolver::kRelaxation;
  o.milp.gap = a.gap;
  o.milp.seconds = a.seconds;
  MOERT_ASSIGN_OR_RETURN(o.costs, LoadCostTable(a.profile, Env::Default()));
  if (!a.schemes.empty()) {
    MOERT_ASSIGN_OR_RETURN(o.schemes, ParseSchemes(a.schemes));
  }
  return absl::OkStatus();
}

absl::Status RunAllocate(AllocateArguments& a) {
  MOERT_ASSIGN_OR_RETURN(const Calibration c, ReadCalibration(a.calibration, Env::Default()));
  MOERT_RETURN_IF_ERROR(ReadOptions(c, a));
  MOERT_RETURN_IF_ERROR(CheckCapacity(a, c));
  const AllocationOptions& o = a.options;
  const auto begin = std::chrono::steady_clock::now();
  MOERT_ASSIGN_OR_RETURN(Allocation found,
                         a.bits > 0 ? Allocate(c, o) : AllocateWithin(c, o, a.bytes));
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  Plan plan;
  plan.model = c.model;
  plan.source_identity = c.source_identity;
  found.version.name = a.name.empty() ? fmt::format("mixed-{:.3g}", found.stored_bits) : a.name;
  plan.version = found.version;
  nlohmann::json summary = Summary(a, c, found);
  MOERT_ASSIGN_OR_RETURN(summary["losses"], Losses(a, c, found));
  plan.summary_json = summary.dump();
  MOERT_RETURN_IF_ERROR(WriteText(a.out, PlanToJson(plan)));
  if (!a.picture.empty()) {
    MOERT_RETURN_IF_ERROR(WriteText(
        a.picture,
        HeatMapSvg(c.model, found.version,
                   fmt::format("{}: {:.3f} stored bits", found.version.name, found.stored_bits))));
  }
  if (!a.json.empty()) {
    nlohmann::json report = {{"out", a.out}, {"name", found.version.name}};
    report.update(summary);
    MOERT_RETURN_IF_ERROR(WriteJson(a.json, report));
  }
  if (a.quiet) return absl::OkStatus();
  Print("plan {}: {:.4f} stored bits, {} of {} bytes, loss ({}) {:.6g}\n", found.version.name,
        found.stored_bits, found.bytes, o.capacity, a.loss, found.loss);
  if (found.seconds > 0) {
    Print("  {:.3g} us for {} tokens through all layers ({})\n", 1e6 * found.seconds, o.batch,
          o.costs.name);
  }
  Print("  optimality gap {:.4f} % ({}, {:.2f} s)\n", 100 * found.gap, a.solver, took);
  for (const auto& [name, share] : summary["shares"].items()) {
    Print("  {:5.1f} % {}\n", 100 * share.get<double>(), name);
  }
  return absl::OkStatus();
}

}  // namespace

int AllocateMain(int argc, const char* const* argv) {
  AllocateArguments a;
  AllocationOptions& o = a.options;
  ArgParser parser(kAllocate,
                   "Chooses the scheme of every linear block: the least loss^r time^(1-r) within a "
                   "number of bytes.");
  parser.AddString("calibration", &a.calibration, "file of `moert-pack calibrate`");
  parser.Require("calibration");
  parser.AddOutput("out", &a.out, "the plan to write");
  parser.Require("out");
  parser.AddDouble("bits", &a.bits, "stored bits a weight, scales and padding included");
  parser.AddSize("budget", &a.bytes, "or bytes of memory that all experts take");
  parser.AddDouble("r", &o.r, "1: only the loss counts; 0: only time");
  parser.AddChoice("granularity", &a.granularity, {"linear", "expert", "layer"},
                   "what has one scheme");
  parser.AddSwitch("untied", &o.untied, "gate and up may differ (executed by the CPU only)");
  parser.AddSwitch("per-layer", &o.per_layer, "every layer has its share of the bytes");
  parser.AddChoice("loss", &a.loss, {"auto", "delta", "relative", "end-to-end"},
                   "how Deltas of different layers compare: as they are (the paper's), over the "
                   "norm of the layer's output, by what the model loses; auto: end-to-end if "
                   "calibrated");
  parser.AddDouble("power", &o.power,
                   "the loss is the sum of Delta to this power; 0: 2 for end-to-end, else 1");
  parser.AddInt64("random", &a.random_seed,
                  "a plan drawn with this seed instead of the best, to judge predictions by", 1);
  parser.AddString("schemes", &a.schemes, "comma-separated candidates (default: all calibrated)");
  parser.AddString("profile", &a.profile, "tile cost table: h200, or a file");
  parser.AddInt64("batch", &o.batch, "tokens a batch, for the time", 1, int64_t{1} << 30);
  parser.AddChoice("solver", &a.solver, {"cbc", "lagrangian"}, "default: cbc where it is built in");
  parser.AddDouble("gap", &a.gap, "cbc stops at this share of the optimum");
  parser.AddDouble("time-limit", &a.seconds, "seconds for cbc");
  parser.AddString("name", &a.name, "the version's name (default: mixed-BITS)");
  parser.AddOutput("picture", &a.picture, "an SVG heat map to write");
  parser.AddJson(&a.json);
  parser.AddQuiet(&a.quiet, "table");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  absl::Status status;
  try {
    status = RunAllocate(a);
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("out of memory");
  }
  return status.ok() ? kExitOk : ReportError(kAllocate, status);
}

}  // namespace moert::cli
