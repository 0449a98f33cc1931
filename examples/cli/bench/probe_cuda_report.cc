#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench/probe_cuda.h"

namespace moert::cli {
namespace {

using nlohmann::json;

std::string Rate(const Spread& s) {
  return fmt::format("{:8.2f} GB/s ({:.2f} .. {:.2f})", 1e-9 * s.median, 1e-9 * s.min,
                     1e-9 * s.max);
}

std::string Micro(const Spread& s) {
  return fmt::format("{:8.2f} us ({:.2f} .. {:.2f})", 1e-3 * s.median, 1e-3 * s.min, 1e-3 * s.max);
}

/// The measurements of queued pinned copies to the device, which transfers are made of.
std::vector<const CopyRate*> Queued(const CudaProbe& probe) {
  std::vector<const CopyRate*> rows;
  for (const CopyRate& c : probe.copies) {
    if (c.memory == "pinned" && c.direction == "to device" && c.queued > 1) rows.push_back(&c);
  }
  return rows;
}

}  // namespace

std::vector<std::string> Lines(const CudaProbe& p) {
  std::vector<std::string> lines = {
      fmt::format("device    {}, driver for CUDA {}, runtime {}", p.device, p.driver, p.runtime)};
  for (const CopyRate& c : p.copies) {
    lines.push_back(fmt::format("copy      {:>6} KiB {:<9} {:<9} {} queued {}", c.bytes >> 10,
                                c.memory, c.direction, c.queued, Rate(c.bytes_per_s)));
  }
  const DeviceCosts& c = p.costs;
  lines.push_back("memory    read                  " + Rate(c.read_bytes_per_s));
  lines.push_back("          copy (read + written) " + Rate(c.copy_bytes_per_s));
  lines.push_back("pinning   allocated             " + Rate(c.pin_bytes_per_s));
  lines.push_back("          registered            " + Rate(c.register_bytes_per_s));
  const std::pair<const char*, const Spread*> costs[] = {
      {"launch, host", &c.launch},
      {"launch and wait", &c.launch_wait},
      {"empty kernel, device", &c.kernel},
      {"... of a graph", &c.graph_kernel},
      {"event recorded, host", &c.event_record},
      {"event waited for, host", &c.event_wait},
      {"from stream to stream", &c.event_hop},
      {"event and host's wait", &c.event_synchronize},
      {"word written, host", &c.memop_enqueue},
      {"word written, device", &c.memop},
      {"flag to stream and back", &c.memop_round_trip}};
  for (const auto& [name, spread] : costs) {
    lines.push_back(fmt::format("cost      {:<24}{}", name, Micro(*spread)));
  }
  for (const DeviceLayer& l : p.layers) {
    lines.push_back(fmt::format("a layer   {:>3} tokens: captured {}, without products {}",
                                l.tokens, Micro(l.captured), Micro(l.captured_bare)));
    lines.push_back(fmt::format("                      cached   {}, without products {}",
                                Micro(l.cached), Micro(l.cached_bare)));
  }
  return lines;
}

json ToJson(const CudaProbe& p) {
  json copies = json::array();
  for (const CopyRate& c : p.copies) {
    copies.push_back({{"bytes", c.bytes},
                      {"memory", c.memory},
                      {"direction", c.direction},
                      {"queued", c.queued},
                      {"bytes_per_s", ToJson(c.bytes_per_s)}});
  }
  json layers = json::array();
  for (const DeviceLayer& l : p.layers) {
    layers.push_back({{"tokens", l.tokens},
                      {"captured_ns", ToJson(l.captured)},
                      {"captured_bare_ns", ToJson(l.captured_bare)},
                      {"cached_ns", ToJson(l.cached)},
                      {"cached_bare_ns", ToJson(l.cached_bare)}});
  }
  const DeviceCosts& c = p.costs;
  return {{"device", p.device},
          {"driver_cuda", p.driver},
          {"runtime", p.runtime},
          {"copies", copies},
          {"read_bytes_per_s", ToJson(c.read_bytes_per_s)},
          {"copy_bytes_per_s", ToJson(c.copy_bytes_per_s)},
          {"pin_bytes_per_s", ToJson(c.pin_bytes_per_s)},
          {"register_bytes_per_s", ToJson(c.register_bytes_per_s)},
          {"launch_ns", ToJson(c.launch)},
          {"launch_wait_ns", ToJson(c.launch_wait)},
          {"kernel_ns", ToJson(c.kernel)},
          {"graph_kernel_ns", ToJson(c.graph_kernel)},
          {"event_record_ns", ToJson(c.event_record)},
          {"event_wait_ns", ToJson(c.event_wait)},
          {"event_hop_ns", ToJson(c.event_hop)},
          {"event_synchronize_ns", ToJson(c.event_synchronize)},
          {"memop_enqueue_ns", ToJson(c.memop_enqueue)},
          {"memop_ns", ToJson(c.memop)},
          {"memop_round_trip_ns", ToJson(c.memop_round_trip)},
          {"experts_a_call", p.experts},
          {"expert_bytes", p.expert_bytes},
          {"layers", layers}};
}

void UseDevice(const CudaProbe& p, json* profile) {
  json& out = *profile;
  out["name"] = p.device;
  // A transfer as latency plus bytes over rate, through a small and a large size.
  const std::vector<const CopyRate*> rows = Queued(p);
  const CopyRate& small = *rows[rows.size() > 1 ? 1 : 0];
  const CopyRate& large = *rows.back();
  const auto ns = [](const CopyRate& c) {
    return 1e9 * static_cast<double>(c.bytes) / c.bytes_per_s.median;
  };
  const double slope = (ns(large) - ns(small)) / static_cast<double>(large.bytes - small.bytes);
  out["link_bytes_per_s"] = slope > 0 ? 1e9 / slope : large.bytes_per_s.median;
  out["link_latency_ns"] =
      std::round(std::max(0.0, ns(small) - slope * static_cast<double>(small.bytes)));
  out["link_streams"] = 1;  // one copy engine a direction
  out["stream_bytes_per_s"] = 0;
  out["arrival_ns"] = std::round(p.costs.event_synchronize.median);
  out["cpu_executor"] = true;
  // Layer times with a cache, where the host looks at every routing. The time of products is that
  // of captured layers less that of layers whose experts have hardly any size.
  const DeviceLayer& first = p.layers.front();
  const DeviceLayer& last = p.layers.back();
  out["decode_layer_ns"] = std::round(first.cached_bare.median);
  out["prefill_token_ns"] =
      last.tokens > first.tokens
          ? std::round(std::max(0.0, last.cached_bare.median - first.cached_bare.median) /
                       static_cast<double>(last.tokens - first.tokens))
          : 0;
  out["next_gate_ns"] = 0;
  out["wave_ns"] = 0;
  out["wake_ns"] = 0;
  out["version_compute"] = json::object();
  json rates = json::array();
  for (const DeviceLayer& l : p.layers) {
    const double products = std::max(l.captured.median - l.captured_bare.median, 1.0);
    rates.push_back(
        {{"tokens", l.tokens},
         {"weight_bytes_per_s", 1e9 * static_cast<double>(p.experts * p.expert_bytes) / products}});
  }
  out["compute"] = rates;
}

}  // namespace moert::cli
