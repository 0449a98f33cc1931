// moert-bench probe: the rates of this machine, as the HardwareProfile that --profile takes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "examples/cli/bench/bench.h"
#include "examples/cli/bench/commit.h"
#include "examples/cli/bench/probe_parts.h"
#include "examples/cli/common/args.h"
#include "examples/cli/common/report.h"
#include "moert/profile.h"

namespace moert::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string directory;
  int64_t file_bytes = int64_t{1} << 30;
  std::string link = "disk";
  int threads = 0;
  int hidden = 2048;
  int intermediate = 768;
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128};
  std::string schemes = "bf16";
  double attention_us = 0;
  int repeats = 5;
  std::string name;
  std::string json;
  bool quiet = false;
};

/// Rates are the best of the repetitions: what the machine can do, whatever else it did meanwhile.
/// Time of a transfer as latency plus bytes over rate, through the smallest and the largest size.
struct Link {
  double bytes_per_s = 0;
  double latency_ns = 0;
};
Link FitLink(const DiskRate& small, const DiskRate& large) {
  const auto ns = [](const DiskRate& r) {
    return 1e9 * static_cast<double>(r.bytes) / r.bytes_per_s.max;
  };
  Link link;
  const double slope =
      (ns(large) - ns(small)) / static_cast<double>(large.bytes - small.bytes);  // ns a byte
  // Large reads that are slower than the line through them say that latency is no part of it.
  link.bytes_per_s = slope > 0 ? 1e9 / slope : large.bytes_per_s.max;
  link.latency_ns =
      std::max(0.0, ns(small) - 1e9 * static_cast<double>(small.bytes) / link.bytes_per_s);
  return link;
}

json DiskJson(const std::vector<DiskRate>& rates) {
  json rows = json::array();
  for (const DiskRate& r : rates) {
    rows.push_back({{"bytes", r.bytes},
                    {"threads", r.threads},
                    {"access", r.access},
                    {"bytes_per_s", ToJson(r.bytes_per_s)}});
  }
  return rows;
}

json ComputeJson(const std::vector<ComputeProbe>& probes) {
  json rows = json::array();
  for (const ComputeProbe& p : probes) {
    rows.push_back({{"kernels", p.kernels},
                    {"scheme", p.scheme},
                    {"tokens", p.tokens},
                    {"weight_bytes_per_s", ToJson(p.bytes_per_s)}});
  }
  return rows;
}

/// The profile's "compute": the first scheme, by the best kernels ("auto" takes the first set).
json ProfileRates(const std::vector<ComputeProbe>& probes) {
  json rows = json::array();
  for (const ComputeProbe& p : probes) {
    if (p.kernels != probes.front().kernels || p.scheme != probes.front().scheme) continue;
    rows.push_back({{"tokens", p.tokens}, {"weight_bytes_per_s", p.bytes_per_s.max}});
  }
  return rows;
}

std::string Gb(const Spread& s) {
  return fmt::format("{:7.2f} GB/s ({:.2f} .. {:.2f})", 1e-9 * s.median, 1e-9 * s.min,
                     1e-9 * s.max);
}
std::string Us(const Spread& s) {
  return fmt::format("{:7.1f} us ({:.1f} .. {:.1f})", 1e-3 * s.median, 1e-3 * s.min, 1e-3 * s.max);
}

absl::Status RunProbe(const Options& o, const std::string& command) {
  if (o.link != "disk" && o.link != "memory") {
    return absl::InvalidArgumentError("--link: legal are disk and memory");
  }
  const auto say = [&](const std::string& line) {
    if (o.quiet) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const json machine = DescribeMachine();
  say(fmt::format("machine   {}, {} CPUs, {}", machine["cpu"].get<std::string>(),
                  machine["cpus"].get<int>(), machine["kernel"].get<std::string>()));
  const int64_t pin = PinLimit();
  say(pin < 0 ? "pinning   no limit" : fmt::format("pinning   at most {} bytes", pin));

  MOERT_ASSIGN_OR_RETURN(const MemoryRates memory, ProbeMemory(o.threads, o.repeats));
  say("memory    read, all threads  " + Gb(memory.read));
  say("          read, one thread   " + Gb(memory.read_one_thread));
  say("          copy, all threads  " + Gb(memory.copy));

  ThreadPoolOptions pool_options;
  pool_options.threads = o.threads;
  MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool(pool_options));
  MOERT_ASSIGN_OR_RETURN(const WakeTimes wake, ProbeWake(pool.get(), o.repeats));
  say("waking    a thread           " + Us(wake.condition));
  say("          the pool, spinning " + Us(wake.pool));
  say("          the pool, asleep   " + Us(wake.pool_slept));
  say("          sleep of 100 us, late by " + Us(wake.sleep));

  const std::string directory =
      o.directory.empty() ? std::filesystem::temp_directory_path().string() : o.directory;
  MOERT_ASSIGN_OR_RETURN(const std::vector<DiskRate> disk,
                         ProbeDisk(directory, o.file_bytes, o.repeats));
  for (const DiskRate& r : disk) {
    say(fmt::format("disk      {:>6} KiB, {} threads, {:<7} {}", r.bytes >> 10, r.threads, r.access,
                    Gb(r.bytes_per_s)));
  }

  MOERT_ASSIGN_OR_RETURN(const std::vector<ComputeProbe> compute,
                         ProbeCompute(pool.get(), o.hidden, o.intermediate, o.tokens,
                                      absl::StrSplit(o.schemes, ','), o.repeats));
  if (compute.empty()) return absl::UnimplementedError("no kernel set has the first scheme");
  for (const ComputeProbe& p : compute) {
    say(fmt::format("experts   {:<11} {:<14} {:>4} tokens   {}", p.kernels, p.scheme, p.tokens,
                    Gb(p.bytes_per_s)));
  }
  MOERT_ASSIGN_OR_RETURN(const LayerOverhead layer, ProbeLayer(o.threads, o.repeats));
  say(fmt::format("a layer   {:.1f} us beside its products, {:.2f} us for every token more",
                  1e-3 * layer.call_ns, 1e-3 * layer.token_ns));

  // What the engine does by default: two readers, direct.
  const DiskRate* small = nullptr;
  const DiskRate* large = nullptr;
  for (const DiskRate& r : disk) {
    if (r.threads != 2 || r.access != "direct") continue;
    if (small == nullptr) small = &r;
    large = &r;
  }
  Link link = FitLink(*small, *large);
  if (o.link == "memory") link = {memory.copy.max, wake.condition.min};
  const double attention_ns = 1e3 * o.attention_us;
  const json result = {{"name", o.name.empty() ? machine["cpu"].get<std::string>() : o.name},
                       {"link_bytes_per_s", link.bytes_per_s},
                       {"link_latency_ns", std::round(link.latency_ns)},
                       {"decode_layer_ns", std::round(layer.call_ns + attention_ns)},
                       {"prefill_token_ns", std::round(layer.token_ns)},
                       {"cpu_weight_bytes_per_s", compute.front().bytes_per_s.max},
                       {"cpu_expert_latency_ns", std::round(wake.pool.median)},
                       {"compute", ProfileRates(compute)},
                       {"probe",
                        {{"command", command},
                         {"commit", BuildCommit()},
                         {"machine", machine},
                         {"threads", pool->num_threads()},
                         {"repeats", o.repeats},
                         {"link", o.link},
                         {"pin_limit_bytes", pin},
                         {"memory",
                          {{"read", ToJson(memory.read)},
                           {"read_one_thread", ToJson(memory.read_one_thread)},
                           {"copy", ToJson(memory.copy)}}},
                         {"wake_ns",
                          {{"condition", ToJson(wake.condition)},
                           {"pool", ToJson(wake.pool)},
                           {"pool_slept", ToJson(wake.pool_slept)},
                           {"sleep_late", ToJson(wake.sleep)}}},
                         {"disk", DiskJson(disk)},
                         {"experts", ComputeJson(compute)},
                         {"layer", {{"call_ns", layer.call_ns}, {"token_ns", layer.token_ns}}}}}};
  return o.json.empty() ? absl::OkStatus() : WriteJson(o.json, result);
}

}  // namespace

int BenchProbe(int argc, const char* const* argv) {
  Options o;
  ArgParser parser("moert-bench probe", "the rates of this machine, for --profile");
  parser.AddString("dir", &o.directory, "folder on the disk that models are read from");
  parser.AddSize("file-size", &o.file_bytes, "size of the file written there to be read");
  parser.AddChoice("link", &o.link, {"disk", "memory"},
                   "what transfers of the profile read: two direct readers, or memory");
  parser.AddInt("threads", &o.threads, "compute threads; 0: one a core", 0, 1024);
  parser.AddInt("hidden", &o.hidden, "hidden size of the experts multiplied", 64, 1 << 16);
  parser.AddInt("intermediate", &o.intermediate, "their intermediate size", 64, 1 << 16);
  parser.AddIntList("tokens", &o.tokens, "tokens an expert, ascending", 1);
  parser.AddString("schemes", &o.schemes, "schemes, comma-separated; the first is the profile's");
  parser.AddDouble("attention-us", &o.attention_us, "a host's attention a layer, added to it");
  parser.AddInt("repeats", &o.repeats, "repetitions", 1, 1000);
  parser.AddString("name", &o.name, "name of the profile");
  parser.AddString("json", &o.json, "writes the profile to a file, or - for stdout");
  parser.AddSwitch("quiet", &o.quiet, "no table");
  absl::Status status = parser.Parse(argc - 1, argv + 1);
  if (status.ok() && parser.help_requested()) {
    fmt::print("{}", parser.Help());
    return kExitOk;
  }
  if (status.ok() &&
      (o.file_bytes < int64_t{64} << 20 || !std::is_sorted(o.tokens.begin(), o.tokens.end()) ||
       !std::isfinite(o.attention_us) || o.attention_us < 0)) {
    status = absl::InvalidArgumentError(
        "--file-size is at least 64MiB, --tokens ascend, --attention-us is 0 or more");
  }
  if (status.ok()) status = RunProbe(o, "moert-bench " + CommandLine(argc, argv));
  return status.ok() ? kExitOk : ReportError("moert-bench probe", status);
}

}  // namespace moert::cli
