// moert-bench probe: the rates of this machine, as the HardwareProfile that --profile takes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/bench/commit.h"
#include "cli/bench/probe_cuda.h"
#include "cli/bench/probe_parts.h"
#include "cli/common/args.h"
#include "cli/common/report.h"
#include "moert/default_thread_pool.h"
#include "moert/profile.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string directory;
  int64_t file_bytes = int64_t{1} << 30;
  std::string link = "disk";
  std::string backend = "auto";
  int threads = 0;
  int io_threads = 2;
  double link_gbps = 0;
  std::string shape = "qwen3-30b";
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128};
  std::vector<int> device_tokens = {1, 2, 4, 8, 16, 32, 64, 256};
  std::string schemes = "bf16";
  double attention_us = 0;
  int repeats = 5;
  std::string name;
  std::string json;
  bool quiet = false;
};

/// Transfers as latency plus bytes over rate: of one alone through the smallest and the largest
/// size, together by the largest. Rates are the best of the repetitions: what the machine can do,
/// whatever else it did meanwhile.
struct Link {
  double bytes_per_s = 0;
  double stream_bytes_per_s = 0;
  double latency_ns = 0;
  double arrival_ns = 0;
  int streams = 1;
};

double ReadNs(const DiskRate& r) { return 1e9 * static_cast<double>(r.bytes) / r.bytes_per_s.max; }

Link DiskLink(const std::vector<DiskRate>& rates, int streams) {
  const DiskRate *small = nullptr, *large = nullptr, *together = nullptr;
  for (const DiskRate& r : rates) {
    if (r.access != "direct") continue;
    if (r.threads == 1 && small == nullptr) small = &r;
    if (r.threads == 1) large = &r;
    if (r.threads <= streams) together = &r;  // the last: the largest size
  }
  Link link;
  link.streams = streams;
  const double slope =
      (ReadNs(*large) - ReadNs(*small)) / static_cast<double>(large->bytes - small->bytes);
  // Large reads that are slower than the line through them say that latency is no part of it.
  link.stream_bytes_per_s = slope > 0 ? 1e9 / slope : large->bytes_per_s.max;
  link.latency_ns = std::max(
      0.0, ReadNs(*small) - 1e9 * static_cast<double>(small->bytes) / link.stream_bytes_per_s);
  link.bytes_per_s = std::max(together->bytes_per_s.max, large->bytes_per_s.max);
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
                    {"experts", p.experts},
                    {"tokens", p.tokens},
                    {"weight_bytes_per_s", ToJson(p.bytes_per_s)}});
  }
  return rows;
}

double CallNs(const ComputeProbe& p) {
  return 1e9 * static_cast<double>(p.call_bytes) / p.bytes_per_s.max;
}

/// The best kernels that have the scheme ("auto" takes the first set).
std::vector<ComputeProbe> Best(const std::vector<ComputeProbe>& probes, const std::string& scheme) {
  std::vector<ComputeProbe> best;
  for (const ComputeProbe& p : probes) {
    if (p.scheme == scheme && (best.empty() || best.front().kernels == p.kernels)) {
      best.push_back(p);
    }
  }
  return best;
}

/// What a call takes beside its experts: one expert a call against several, one token each.
double WaveNs(const std::vector<ComputeProbe>& best) {
  const ComputeProbe& one = best.back();
  for (const ComputeProbe& p : best) {
    if (p.tokens != 1 || p.experts == 1) continue;
    const auto n = static_cast<double>(p.experts);
    return std::max(0.0, (n * CallNs(one) - CallNs(p)) / (n - 1));
  }
  return 0;
}

/// A profile's "compute": rates of experts, the call's own time taken out.
json ProfileRates(const std::vector<ComputeProbe>& best, double wave_ns) {
  json rows = json::array();
  for (const ComputeProbe& p : best) {
    if (p.experts == 1) continue;
    const double ns = std::max(CallNs(p) - wave_ns, 0.1 * CallNs(p));
    rows.push_back({{"tokens", p.tokens},
                    {"weight_bytes_per_s", 1e9 * static_cast<double>(p.call_bytes) / ns}});
  }
  return rows;
}

/// A profile's "cpu_next_token_share", of versions that were not measured: over the first tokens.
double NextTokenShare(const std::vector<ComputeProbe>& best) {
  constexpr int kFew = 8;
  double one_ns = 0, share = 1;
  for (const ComputeProbe& p : best) {
    if (p.experts == 1 || p.tokens > kFew) continue;
    if (p.tokens == 1) {
      one_ns = CallNs(p);
    } else if (one_ns > 0) {
      share = std::max(0.0, (CallNs(p) / one_ns - 1) / (p.tokens - 1));
    }
  }
  return share;
}

std::string Gb(const Spread& s) {
  return fmt::format("{:7.2f} GB/s ({:.2f} .. {:.2f})", 1e-9 * s.median, 1e-9 * s.min,
                     1e-9 * s.max);
}
std::string Us(const Spread& s) {
  return fmt::format("{:7.1f} us ({:.1f} .. {:.1f})", 1e-3 * s.median, 1e-3 * s.min, 1e-3 * s.max);
}

absl::Status RunProbe(const Options& o, const std::string& command) {
  MOERT_ASSIGN_OR_RETURN(const Shape shape, ParseShape(o.shape + ":2"));
  const MoeLayerSpec& expert = shape.spec.layers.front();
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

  MOERT_ASSIGN_OR_RETURN(const MemoryRates memory, ProbeMemory(o.threads, o.io_threads, o.repeats));
  say("memory    read, all threads  " + Gb(memory.read));
  say("          read, one thread   " + Gb(memory.read_one_thread));
  say("          copy, all threads  " + Gb(memory.copy));
  say("          copy, one thread   " + Gb(memory.copy_one_thread));
  say("          copy, readers      " + Gb(memory.copy_readers));

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

  const std::vector<std::string> schemes = absl::StrSplit(o.schemes, ',');
  MOERT_ASSIGN_OR_RETURN(
      const std::vector<ComputeProbe> compute,
      ProbeCompute(pool.get(), expert.hidden, expert.intermediate, o.tokens, schemes, o.repeats));
  if (compute.empty()) return absl::UnimplementedError("no kernel set has the first scheme");
  for (const ComputeProbe& p : compute) {
    say(fmt::format("experts   {:<11} {:<14} {} a call, {:>4} tokens   {}", p.kernels, p.scheme,
                    p.experts, p.tokens, Gb(p.bytes_per_s)));
  }
  MOERT_ASSIGN_OR_RETURN(
      const LayerOverhead layer,
      ProbeLayer(shape, o.threads, static_cast<int64_t>(1e3 * o.attention_us), o.repeats));
  say(
      fmt::format("a layer   {:.1f} us, {:.1f} us of it no products, {:.2f} us for every token "
                  "more, {:.1f} us for the "
                  "next gate",
                  1e-3 * layer.total_ns, 1e-3 * layer.call_ns, 1e-3 * layer.token_ns,
                  1e-3 * layer.next_gate_ns));

  absl::StatusOr<CudaProbe> device = absl::UnavailableError("not asked for");
  if (o.backend != "cpu") device = ProbeCuda(shape, o.device_tokens, o.repeats);
  if (!device.ok()) {
    const bool absent = absl::IsUnavailable(device.status()) && o.backend == "auto";
    if (o.backend != "cpu" && !absent) return device.status();
    say("device    none: " + std::string(device.status().message()));
  } else {
    for (const std::string& line : Lines(*device)) say(line);
  }

  // What the engine does: direct reads by its I/O threads.
  Link link = DiskLink(disk, o.io_threads);
  if (o.link == "memory") {
    link = {memory.copy_readers.max, memory.copy_one_thread.max, 0, 0, o.io_threads};
  }
  link.arrival_ns = wake.condition.median;
  if (o.link_gbps > 0) {
    link = {1e9 * o.link_gbps, 0, 0, link.arrival_ns + wake.sleep.median, 1};
  }
  const std::vector<ComputeProbe> best = Best(compute, schemes.front());
  const double wave_ns = WaveNs(best);
  json cpu = json::object();
  for (const std::string& scheme : schemes) {
    const std::vector<ComputeProbe> rates = Best(compute, scheme);
    if (!rates.empty()) cpu[scheme] = {{"compute", ProfileRates(rates, 0)}};
  }
  json versions = json::object();
  for (size_t i = 1; i < schemes.size(); ++i) {
    const std::vector<ComputeProbe> rates = Best(compute, schemes[i]);
    if (!rates.empty()) versions[schemes[i]] = {{"compute", ProfileRates(rates, wave_ns)}};
  }
  json result = {{"name", o.name.empty() ? machine["cpu"].get<std::string>() : o.name},
                 {"link_bytes_per_s", link.bytes_per_s},
                 {"link_latency_ns", std::round(link.latency_ns)},
                 {"link_streams", link.streams},
                 {"stream_bytes_per_s", link.stream_bytes_per_s},
                 {"arrival_ns", std::round(link.arrival_ns)},
                 {"decode_layer_ns", std::round(layer.call_ns)},
                 {"prefill_token_ns", std::round(layer.token_ns)},
                 {"next_gate_ns", std::round(layer.next_gate_ns)},
                 {"wave_ns", std::round(wave_ns)},
                 {"wake_ns", std::round(wake.pool_slept.median)},
                 {"cpu_weight_bytes_per_s", best.front().bytes_per_s.max},
                 {"cpu_expert_latency_ns", std::round(wake.pool.median)},
                 {"cpu_next_token_share", NextTokenShare(best)},
                 {"cpu_compute", cpu},
                 {"compute", ProfileRates(best, wave_ns)},
                 {"version_compute", versions},
                 {"probe",
                  {{"command", command},
                   {"commit", BuildCommit()},
                   {"machine", machine},
                   {"threads", pool->num_threads()},
                   {"io_threads", o.io_threads},
                   {"shape", o.shape},
                   {"attention_us", o.attention_us},
                   {"repeats", o.repeats},
                   {"link", o.link},
                   {"pin_limit_bytes", pin},
                   {"memory",
                    {{"read", ToJson(memory.read)},
                     {"read_one_thread", ToJson(memory.read_one_thread)},
                     {"copy", ToJson(memory.copy)},
                     {"copy_one_thread", ToJson(memory.copy_one_thread)},
                     {"copy_readers", ToJson(memory.copy_readers)}}},
                   {"wake_ns",
                    {{"condition", ToJson(wake.condition)},
                     {"pool", ToJson(wake.pool)},
                     {"pool_slept", ToJson(wake.pool_slept)},
                     {"sleep_late", ToJson(wake.sleep)}}},
                   {"disk", DiskJson(disk)},
                   {"experts", ComputeJson(compute)},
                   {"layer",
                    {{"total_ns", layer.total_ns},
                     {"call_ns", layer.call_ns},
                     {"token_ns", layer.token_ns},
                     {"next_gate_ns", layer.next_gate_ns}}}}}};
  if (device.ok()) {
    UseDevice(*device, &result);
    result["probe"]["cuda"] = ToJson(*device);
  } else {
    result["probe"]["cuda"] = {{"none", std::string(device.status().message())}};
  }
  return o.json.empty() ? absl::OkStatus() : WriteJson(o.json, result);
}

}  // namespace

int BenchProbe(int argc, const char* const* argv) {
  Options o;
  ArgParser parser("moert-bench probe", "the rates of this machine, for --profile");
  parser.AddString("dir", &o.directory, "folder on the disk that models are read from");
  parser.AddSize("file-size", &o.file_bytes, "size of the file written there to be read");
  parser.AddChoice("backend", &o.backend, {"auto", "cpu", "cuda"},
                   "whose profile it is; auto: the device's if there is one");
  parser.AddChoice("link", &o.link, {"disk", "memory"},
                   "what transfers of the profile read: the disk, directly, or memory");
  parser.AddDouble("link-gbps", &o.link_gbps, "or a link paced to this rate, GB/s; 0: not");
  parser.AddInt("threads", &o.threads, "compute threads; 0: one a core", 0, 1024);
  parser.AddInt("io-threads", &o.io_threads, "threads that read experts", 1, 16);
  parser.AddString("synthetic", &o.shape, "shape of the experts and of the layer measured");
  parser.AddIntList("tokens", &o.tokens, "tokens an expert, ascending", 1);
  parser.AddString("schemes", &o.schemes,
                   "stored versions, comma-separated, as the experts have them");
  parser.AddDouble("attention-us", &o.attention_us,
                   "emulated attention before every layer call that is measured");
  parser.AddInt("repeats", &o.repeats, "repetitions", 1, 1000);
  parser.AddString("name", &o.name, "name of the profile");
  parser.AddJson(&o.json);
  parser.AddSwitch("quiet", &o.quiet, "no table");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  absl::Status status;
  if (status.ok() &&
      (o.file_bytes < int64_t{64} << 20 || !std::is_sorted(o.tokens.begin(), o.tokens.end()) ||
       o.tokens.front() != 1 || !(o.attention_us >= 0 && o.attention_us <= 1e9) ||
       !(o.link_gbps >= 0 && o.link_gbps <= 1e6))) {
    status = absl::InvalidArgumentError(
        "--file-size is at least 64MiB, --tokens ascend from 1, --attention-us is from 0 to 1e9, "
        "--link-gbps from 0 to 1e6");
  }
  if (status.ok()) status = RunProbe(o, "moert-bench probe " + CommandLine(argc, argv));
  return status.ok() ? kExitOk : ReportError("moert-bench probe", status);
}

}  // namespace moert::cli
