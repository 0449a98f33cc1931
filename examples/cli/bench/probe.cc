// moert-bench probe: the rates of this machine, as the HardwareProfile that --profile takes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "absl/strings/str_split.h"
#include "cli/bench/bench.h"
#include "cli/bench/probe_profile.h"
#include "cli/common/args.h"
#include "cli/common/interrupt.h"
#include "cli/common/output.h"
#include "cli/common/progress.h"
#include "cli/common/report.h"
#include "moert/thread_pool.h"
#include "moert/tools/profile.h"
#include "util/status_macros.h"

namespace moert::cli {
namespace {

std::string Gb(const Spread& s) {
  return fmt::format("{:7.2f} GB/s ({:.2f} .. {:.2f})", 1e-9 * s.median, 1e-9 * s.min,
                     1e-9 * s.max);
}
std::string Us(const Spread& s) {
  return fmt::format("{:7.1f} us ({:.1f} .. {:.1f})", 1e-3 * s.median, 1e-3 * s.min, 1e-3 * s.max);
}

using Say = std::function<void(const std::string& line)>;

// Share of the probe's time that a part may take.
constexpr double kMemoryShare = 0.1, kWakingShare = 0.05, kDiskShare = 0.35, kExpertsShare = 0.25,
                 kLayerShare = 0.1;

absl::Status MeasureMemory(const ProbeOptions& o, const Say& say, Findings* f) {
  MOERT_ASSIGN_OR_RETURN(
      f->memory, ProbeMemory(o.threads, o.io_threads, o.repeats, Until(kMemoryShare * o.seconds)));
  say("memory    read, all threads  " + Gb(f->memory.read));
  say("          read, one thread   " + Gb(f->memory.read_one_thread));
  say("          copy, all threads  " + Gb(f->memory.copy));
  say("          copy, one thread   " + Gb(f->memory.copy_one_thread));
  say("          copy, readers      " + Gb(f->memory.copy_readers));
  return absl::OkStatus();
}

absl::Status MeasureWaking(const ProbeOptions& o, ThreadPool* pool, const Say& say, Findings* f) {
  MOERT_ASSIGN_OR_RETURN(f->wake, ProbeWake(pool, o.repeats, Until(kWakingShare * o.seconds)));
  say("waking    a thread           " + Us(f->wake.condition));
  say("          the pool, spinning " + Us(f->wake.pool));
  say("          the pool, asleep   " + Us(f->wake.pool_slept));
  say("          sleep of 100 us, late by " + Us(f->wake.sleep));
  return absl::OkStatus();
}

absl::Status MeasureDisk(const ProbeOptions& o, const Say& say, Findings* f) {
  const std::string directory =
      o.directory.empty() ? std::filesystem::temp_directory_path().string() : o.directory;
  MOERT_ASSIGN_OR_RETURN(
      f->disk, ProbeDisk(directory, o.file_bytes, o.repeats, Until(kDiskShare * o.seconds)));
  for (const DiskRate& r : f->disk) {
    say(fmt::format("disk      {:>6} KiB, {} threads, {:<7} {}", r.bytes >> 10, r.threads, r.access,
                    Gb(r.bytes_per_s)));
  }
  return absl::OkStatus();
}

absl::Status MeasureExperts(const ProbeOptions& o, const Shape& shape, ThreadPool* pool,
                            const Say& say, Findings* f) {
  const MoeLayerSpec& expert = shape.spec.layers.front();
  MOERT_ASSIGN_OR_RETURN(f->compute,
                         ProbeCompute(pool, expert.hidden, expert.intermediate, o.tokens, o.schemes,
                                      o.repeats, Until(kExpertsShare * o.seconds)));
  if (f->compute.empty()) return absl::UnimplementedError("no kernel set has the first scheme");
  for (const ComputeProbe& p : f->compute) {
    say(fmt::format("experts   {:<11} {:<14} {} a call, {:>4} tokens   {}", p.kernels, p.scheme,
                    p.experts, p.tokens, Gb(p.bytes_per_s)));
  }
  return absl::OkStatus();
}

absl::Status MeasureLayer(const ProbeOptions& o, const Shape& shape, const Say& say, Findings* f) {
  MOERT_ASSIGN_OR_RETURN(
      f->layer, ProbeLayer(shape, o.threads, static_cast<int64_t>(1e3 * o.attention_us), o.repeats,
                           Until(kLayerShare * o.seconds)));
  say(
      fmt::format("a layer   {:.1f} us, {:.1f} us of it no products, {:.2f} us for every token "
                  "more, {:.1f} us for the next gate",
                  1e-3 * f->layer.total_ns, 1e-3 * f->layer.call_ns, 1e-3 * f->layer.token_ns,
                  1e-3 * f->layer.next_gate_ns));
  return absl::OkStatus();
}

/// A missing device is a finding, not an error, where nobody asked for one.
absl::Status MeasureDevice(const ProbeOptions& o, const Shape& shape, const Say& say, Findings* f) {
  if (o.backend != "cpu") f->device = ProbeCuda(shape, o.device_tokens, o.repeats);
  if (f->device.ok()) {
    for (const std::string& line : Lines(*f->device)) say(line);
    return absl::OkStatus();
  }
  const bool absent = absl::IsUnavailable(f->device.status()) && o.backend == "auto";
  if (o.backend != "cpu" && !absent) return f->device.status();
  say("device    none: " + std::string(f->device.status().message()));
  return absl::OkStatus();
}

absl::Status RunProbe(const ProbeOptions& o, const std::string& command) {
  MOERT_ASSIGN_OR_RETURN(const Shape shape, ParseShape(o.shape + ":2"));
  const Say say = [&](const std::string& line) {
    if (o.quiet) return;
    Print("{}\n", line);
    std::fflush(stdout);
  };
  Findings f;
  f.machine = DescribeMachine();
  say(fmt::format("machine   {}, {} CPUs, {}", f.machine["cpu"].get<std::string>(),
                  f.machine["cpus"].get<int>(), f.machine["kernel"].get<std::string>()));
  f.pin_limit = PinLimit();
  say(f.pin_limit < 0 ? "pinning   no limit"
                      : fmt::format("pinning   at most {} bytes", f.pin_limit));
  ThreadPoolOptions pool_options;
  pool_options.threads = o.threads;
  MOERT_ASSIGN_OR_RETURN(const auto pool, CreateThreadPool(pool_options));
  f.threads = pool->num_threads();
  const CatchInterrupts catching;
  absl::Status first;  // of the parts that failed
  const auto part = [&](const char* name, const std::function<absl::Status()>& measure) {
    absl::Status status = absl::CancelledError("interrupted");
    if (!Interrupted()) {
      const Progress progress(fmt::format("measuring: {}", name), !o.quiet);
      status = measure();
    }
    if (status.ok()) return;
    f.missing.emplace_back(name);
    first.Update(absl::Status(status.code(), fmt::format("{}: {}", name, status.message().data())));
    say(fmt::format("{:<9} not measured: {}", name, std::string(status.message())));
  };
  part("memory", [&] { return MeasureMemory(o, say, &f); });
  part("waking", [&] { return MeasureWaking(o, pool.get(), say, &f); });
  part("disk", [&] { return MeasureDisk(o, say, &f); });
  part("experts", [&] { return MeasureExperts(o, shape, pool.get(), say, &f); });
  part("layer", [&] { return MeasureLayer(o, shape, say, &f); });
  part("device", [&] { return MeasureDevice(o, shape, say, &f); });
  if (!o.json.empty()) MOERT_RETURN_IF_ERROR(WriteJson(o.json, ProfileOf(o, command, f)));
  return first;
}

}  // namespace

int BenchProbe(int argc, const char* const* argv) {
  ProbeOptions o;
  std::string schemes = o.schemes.front();
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
  parser.AddString("schemes", &schemes,
                   "stored versions, comma-separated, as the experts have them");
  parser.AddDouble("attention-us", &o.attention_us,
                   "emulated attention before every layer call that is measured");
  parser.AddInt("repeats", &o.repeats, "repetitions, as far as there is time", 1, 1000);
  parser.AddDouble("seconds", &o.seconds,
                   "about how long all of it may take; parts are measured once at least");
  parser.AddString("name", &o.name, "name of the profile");
  parser.AddJson(&o.json);
  parser.AddQuiet(&o.quiet, "table, no progress");
  if (const auto exit = parser.ParseOrReport(argc, argv)) return *exit;
  o.schemes = absl::StrSplit(schemes, ',');
  absl::Status status;
  if (status.ok() &&
      (o.file_bytes < int64_t{64} << 20 || !std::is_sorted(o.tokens.begin(), o.tokens.end()) ||
       o.tokens.front() != 1 || !(o.attention_us >= 0 && o.attention_us <= 1e9) ||
       !(o.link_gbps >= 0 && o.link_gbps <= 1e6) || !(o.seconds >= 0 && o.seconds <= 1e6))) {
    status = absl::InvalidArgumentError(
        "--file-size is at least 64MiB, --tokens ascend from 1, --attention-us is from 0 to 1e9, "
        "--link-gbps and --seconds from 0 to 1e6");
  }
  if (status.ok()) status = RunProbe(o, "moert-bench probe " + CommandLine(argc, argv));
  return status.ok() ? kExitOk : ReportError("moert-bench probe", status);
}

}  // namespace moert::cli
