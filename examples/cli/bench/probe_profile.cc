// The result of a probe as a HardwareProfile, with the measurements under "probe".
#include "cli/bench/probe_profile.h"

#include <algorithm>
#include <cmath>

#include "cli/bench/commit.h"
#include "cli/common/report.h"

namespace moert::cli {
namespace {

using nlohmann::json;

/// Transfers as latency plus bytes over rate: a single one fitted to the smallest and the largest
/// size, concurrent ones to the largest. Rates are the best of the repetitions, which other load on
/// the machine disturbed least.
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

/// The time of a call beside its experts: one expert a call against several, one token each.
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

/// The engine's transfers read the file so: by direct reads of its I/O threads unless asked for
/// something else.
Link EngineLink(const ProbeOptions& o, const Findings& f) {
  Link link = DiskLink(f.disk, o.io_threads);
  if (o.link == "memory") {
    link = {f.memory.copy_readers.max, f.memory.copy_one_thread.max, 0, 0, o.io_threads};
  }
  link.arrival_ns = f.wake.condition.median;
  if (o.link_gbps > 0) {
    link = {1e9 * o.link_gbps, 0, 0, link.arrival_ns + f.wake.sleep.median, 1};
  }
  return link;
}

/// "compute" of every scheme from number `first` on that was measured.
json RatesByScheme(const std::vector<ComputeProbe>& compute,
                   const std::vector<std::string>& schemes, size_t first, double wave_ns) {
  json result = json::object();
  for (size_t i = first; i < schemes.size(); ++i) {
    const std::vector<ComputeProbe> rates = Best(compute, schemes[i]);
    if (!rates.empty()) result[schemes[i]] = {{"compute", ProfileRates(rates, wave_ns)}};
  }
  return result;
}

json MemoryJson(const MemoryRates& memory) {
  return {{"read", ToJson(memory.read)},
          {"read_one_thread", ToJson(memory.read_one_thread)},
          {"copy", ToJson(memory.copy)},
          {"copy_one_thread", ToJson(memory.copy_one_thread)},
          {"copy_readers", ToJson(memory.copy_readers)}};
}

json WakeJson(const WakeTimes& wake) {
  return {{"condition", ToJson(wake.condition)},
          {"pool", ToJson(wake.pool)},
          {"pool_slept", ToJson(wake.pool_slept)},
          {"sleep_late", ToJson(wake.sleep)}};
}

json LayerJson(const LayerOverhead& layer) {
  return {{"total_ns", layer.total_ns},
          {"call_ns", layer.call_ns},
          {"token_ns", layer.token_ns},
          {"next_gate_ns", layer.next_gate_ns}};
}

/// The measurements, and how they were made.
json MeasurementJson(const ProbeOptions& o, const std::string& command, const Findings& f) {
  json probe = {{"command", command},
                {"commit", BuildCommit()},
                {"machine", f.machine},
                {"threads", f.threads},
                {"io_threads", o.io_threads},
                {"shape", o.shape},
                {"attention_us", o.attention_us},
                {"repeats", o.repeats},
                {"link", o.link},
                {"pin_limit_bytes", f.pin_limit},
                {"memory", MemoryJson(f.memory)},
                {"wake_ns", WakeJson(f.wake)},
                {"disk", DiskJson(f.disk)},
                {"experts", ComputeJson(f.compute)},
                {"layer", LayerJson(f.layer)}};
  if (f.device.ok()) {
    probe["cuda"] = ToJson(*f.device);
  } else {
    probe["cuda"] = {{"none", std::string(f.device.status().message())}};
  }
  return probe;
}

}  // namespace

json ProfileOf(const ProbeOptions& o, const std::string& command, const Findings& f) {
  const std::string name = o.name.empty() ? f.machine["cpu"].get<std::string>() : o.name;
  // A missing cost is not replaced by another machine's: LoadProfile refuses the profile.
  if (!f.missing.empty()) {
    return {{"name", name}, {"missing", f.missing}, {"probe", MeasurementJson(o, command, f)}};
  }
  const Link link = EngineLink(o, f);
  const std::vector<ComputeProbe> best = Best(f.compute, o.schemes.front());
  const double wave_ns = WaveNs(best);
  json profile = {{"name", name},
                  {"link_bytes_per_s", link.bytes_per_s},
                  {"link_latency_ns", std::round(link.latency_ns)},
                  {"link_streams", link.streams},
                  {"stream_bytes_per_s", link.stream_bytes_per_s},
                  {"arrival_ns", std::round(link.arrival_ns)},
                  {"decode_layer_ns", std::round(f.layer.call_ns)},
                  {"prefill_token_ns", std::round(f.layer.token_ns)},
                  {"next_gate_ns", std::round(f.layer.next_gate_ns)},
                  {"wave_ns", std::round(wave_ns)},
                  {"wake_ns", std::round(f.wake.pool_slept.median)},
                  {"cpu_weight_bytes_per_s", best.front().bytes_per_s.max},
                  {"cpu_expert_latency_ns", std::round(f.wake.pool.median)},
                  {"cpu_next_token_share", NextTokenShare(best)},
                  {"cpu_compute", RatesByScheme(f.compute, o.schemes, 0, 0)},
                  {"compute", ProfileRates(best, wave_ns)},
                  {"version_compute", RatesByScheme(f.compute, o.schemes, 1, wave_ns)},
                  {"probe", MeasurementJson(o, command, f)}};
  if (f.device.ok()) UseDevice(*f.device, &profile);
  return profile;
}

}  // namespace moert::cli
