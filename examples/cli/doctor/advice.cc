#include "cli/doctor/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/common/report.h"
#include "util/bytes_text.h"

namespace moert::cli {
namespace {

using util::BytesText;

double Share(int64_t part, int64_t whole) {
  return std::min(1.0,
                  static_cast<double>(part) / static_cast<double>(std::max<int64_t>(whole, 1)));
}

/// The hit ratio of a tier that holds the share r of the experts. The bundled model's routing
/// misses (1 - r)^4.
double FavouredHits(double r) { return 1 - std::pow(1 - r, 4); }

/// Seconds that so many bytes take; infinite where there is no rate.
double Seconds(double bytes, double rate) { return bytes <= 0 ? 0 : bytes / rate; }

double PerSecond(double seconds) { return std::isfinite(seconds) && seconds > 0 ? 1 / seconds : 0; }

// Hit ratios of the fastest tier alone, and of it and the next one together.
struct Hits {
  double first = 0, second = 0;
};
Hits Uniform(const Tiers& t) {
  const double first = t.device > 0 ? t.device : t.memory;
  return {first, t.device + t.memory};
}
Hits Favoured(const Tiers& t) {
  const Hits u = Uniform(t);
  return {FavouredHits(u.first), FavouredHits(u.second)};
}

double CpuSeconds(const ModelFacts& f, const Placement& p, const Rates& rates, const Hits& hits) {
  const auto token = static_cast<double>(p.as.token_bytes);
  const auto rate = rates.experts.find(p.as.scheme);
  return f.moe_layers * rates.layer_s +
         Seconds(static_cast<double>(f.dense_token_bytes), rates.dense) +
         Seconds(token, rate == rates.experts.end() ? 0 : rate->second) +
         Seconds(token * (1 - hits.second), rates.disk);
}

/// `helped`: the CPU multiplies a part of what is missing.
double DeviceSeconds(const ModelFacts& f, const Placement& p, const Rates& rates, const Hits& hits,
                     bool helped) {
  const auto token = static_cast<double>(p.as.token_bytes);
  const auto cpu = rates.experts.find(p.as.scheme);
  double link = rates.device->link_bytes_per_s;
  if (helped && cpu != rates.experts.end()) link += cpu->second;
  const double own = static_cast<double>(f.dense_token_bytes) + token * hits.first;
  return f.layers * kDeviceLayerSeconds +
         Seconds(own, kDeviceShare * rates.device->memory_bytes_per_s) +
         Seconds(token * (1 - hits.first), link) + Seconds(token * (1 - hits.second), rates.disk);
}

/// Room for all records, which are aligned.
int64_t PinnedBytes(const ExpertsAs& as) { return as.bytes + as.bytes / 64 + (1 << 20); }

Placement Place(const ModelFacts& f, const ExpertsAs& as, const Room& room, const Rates& rates,
                bool on_device) {
  Placement p;
  p.as = as;
  const int64_t fixed = f.fixed_bytes;
  if (on_device) {
    const int64_t free = room.device - f.dense_bytes - f.kv_bytes - fixed;
    p.budget = std::min(free, as.bytes) + fixed;
    p.tiers.device = Share(free, as.bytes);
    p.tiers.memory =
        std::min(1 - p.tiers.device, p.tiers.device < 1 ? Share(room.memory, as.bytes) : 0.0);
    if (p.tiers.device < 1 && as.bytes / 2 < room.memory) {
      p.pinned = std::min(room.memory, PinnedBytes(as));
    }
  } else {
    const int64_t free = room.memory - f.dense_bytes - f.kv_bytes - fixed;
    p.budget = std::min(free, as.bytes) + fixed;
    p.tiers.memory = Share(free, as.bytes);
  }
  p.tiers.disk = std::max(0.0, 1 - p.tiers.device - p.tiers.memory);
  const auto seconds = [&](const Hits& hits, bool helped) {
    return on_device ? DeviceSeconds(f, p, rates, hits, helped) : CpuSeconds(f, p, rates, hits);
  };
  p.speed.least = PerSecond(seconds(Uniform(p.tiers), false));
  p.speed.most = PerSecond(seconds(Favoured(p.tiers), true));
  return p;
}

std::string TiersText(const Tiers& t) {
  std::string text;
  const auto add = [&](double share, const char* where) {
    if (share < 0.0005) return;
    text += fmt::format("{}{:.0f} % in {}", text.empty() ? "" : ", ", 100 * share, where);
  };
  add(t.device, "the GPU");
  add(t.memory, "RAM");
  add(t.disk, "files");
  return text;
}

std::string SpeedText(const Speed& s) {
  if (s.least <= 0 && s.most <= 0) return "not known";
  if (s.most <= 1.05 * s.least) return RateText(s.least);
  return s.least > 0 ? RateText(s.least) + " to " + RateText(s.most) : "up to " + RateText(s.most);
}

std::string BudgetText(int64_t bytes) { return fmt::format("{}M", bytes >> 20); }

/// The commands that run the placement, on the device or without one.
std::vector<std::string> Commands(const ModelFacts& f, const Placement& p, bool on_device) {
  const bool whole = on_device ? p.tiers.device >= 1 : p.tiers.memory >= 1;
  const std::string budget = BudgetText(p.budget);
  if (f.kind == ModelKind::kGguf) {
    const std::string flags = on_device ? " -ngl 99" : "";
    if (whole) return {fmt::format("llama-server -m {}{}", f.path, flags)};
    // The option -ot makes every llama.cpp of shared libraries load backends.
    return {
        fmt::format("GGML_BACKEND_PATH=PLUGIN/libggml-moert.so MOERT_BUDGET={} llama-server -m "
                    "{}{} -ot exps=CPU --no-warmup",
                    budget, f.path, flags)};
  }
  std::vector<std::string> commands;
  const std::string as = p.as.stored ? "" : " --as " + p.as.scheme;
  const std::string pinned = p.pinned > 0 ? " --host-budget " + BudgetText(p.pinned) : "";
  const std::string in_python = p.pinned == 0 ? ""
                                : p.pinned >= PinnedBytes(p.as)
                                    ? ", host_budget=\"all\""
                                    : fmt::format(", host_budget={}", p.pinned);
  const std::string strategy =
      whole ? "--strategy resident" : "--strategy auto --budget " + budget + pinned;
  const char* const way = f.chats ? "chat" : "generate --prompt \"...\"";
  commands.push_back(fmt::format("moert-run {} --model {}{} {}", way, f.path, as, strategy));
  if (f.stored.empty()) {
    commands.push_back(fmt::format("python: moert.from_pretrained(\"{}\", budget=\"{}\"{}{}{})",
                                   f.path, budget,
                                   p.as.stored ? "" : fmt::format(", experts=\"{}\"", p.as.scheme),
                                   on_device ? ", device=\"cuda\"" : "", in_python));
  }
  return commands;
}

void AddTable(const Advice& advice, std::vector<std::string>* lines) {
  lines->push_back(
      fmt::format("  {:<18} {:>11}  {:>14}  {}", "experts as", "bytes", "tokens/s", "where"));
  for (const Placement& p : advice.placements) {
    lines->push_back(fmt::format("  {:<18} {:>11}  {:>14}  {}",
                                 p.as.scheme + (p.as.stored ? " *" : ""), BytesText(p.as.bytes),
                                 SpeedText(p.speed), TiersText(p.tiers)));
  }
  lines->emplace_back(
      "  * as the file has them; a scheme of fewer bits loses quality, and is "
      "written to the cache once");
  if (advice.placements.size() == 1) lines->back() = "  * as the file has them";
}

/// The stored scheme and, if it leaves experts out of the fast tier, the widest that does not.
std::vector<const Placement*> Recommended(const Advice& advice) {
  std::vector<const Placement*> taken = {&advice.placements.front()};
  const auto whole = [&](const Placement& p) {
    return advice.on_device ? p.tiers.device >= 1 : p.tiers.memory >= 1;
  };
  if (whole(*taken.front())) return taken;
  for (const Placement& p : advice.placements) {
    if (!whole(p)) continue;
    taken.push_back(&p);
    return taken;
  }
  // None fits whole: four bits, where a choice is left.
  if (advice.placements.size() > 2) taken.push_back(&advice.placements[2]);
  return taken;
}

void AddAssumptions(const ModelFacts& f, const Rates& rates, Advice* advice) {
  auto& lines = advice->assumptions;
  const auto gb = [](double rate) { return fmt::format("{:.3g} GB/s", 1e-9 * rate); };
  std::string measured =
      fmt::format("memory {}, dense products {}", gb(rates.memory), gb(rates.dense));
  for (const Placement& p : advice->placements) {
    const auto rate = rates.experts.find(p.as.scheme);
    if (rate == rates.experts.end() || rate->second <= 0) continue;
    measured += fmt::format(", {} products {}", MeasuredScheme(f, p.as), gb(rate->second));
    break;
  }
  measured += rates.disk > 0 ? ", files " + gb(rates.disk) : ", files not measured";
  if (rates.device.ok()) {
    measured += fmt::format(", GPU memory {}, link {}", gb(rates.device->memory_bytes_per_s),
                            gb(rates.device->link_bytes_per_s));
  }
  lines.push_back("measured here, now: " + measured);
  lines.push_back(
      fmt::format("one request, a context of {} tokens; the lower figure: every expert "
                  "as likely as another; the upper: routing as skewed as the bundled "
                  "model's",
                  f.context));
  if (advice->on_device) {
    lines.push_back(fmt::format(
        "not measured here: products reach {:.0f} % of the GPU's memory rate, and a layer takes "
        "{:.0f} us beside them, as on an H200; the upper figure has the CPU multiply a share of "
        "what is missing",
        100 * kDeviceShare, 1e6 * kDeviceLayerSeconds));
  }
  if (!advice->on_device) {
    lines.push_back(fmt::format("{}; not counted: attention over keys and values",
                                rates.layer_s > 0
                                    ? fmt::format("measured too: {:.3g} us a MoE layer beside its "
                                                  "products",
                                                  1e6 * rates.layer_s)
                                    : "not measured: what a layer takes beside its products"));
  }
  if (f.kind == ModelKind::kGguf) {
    lines.emplace_back("llama.cpp's products are taken to be as fast as ours of as many bits");
  }
  if (f.kind == ModelKind::kConfig) {
    lines.emplace_back("from config.json alone: dense weights as bf16");
  }
}

}  // namespace

Advice Advise(const ModelFacts& f, const Room& room, const Rates& rates) {
  Advice advice;
  const int64_t beside = f.dense_bytes + f.kv_bytes + f.fixed_bytes;
  advice.on_device = rates.device.ok() && room.device > beside;
  advice.fits = advice.on_device || room.memory > beside;
  auto& lines = advice.lines;
  if (rates.device.ok() && !advice.on_device) {
    lines.push_back(
        fmt::format("the GPU's {} do not hold the {} beside the experts: the CPU runs "
                    "the model",
                    BytesText(room.device), BytesText(beside)));
  }
  lines.push_back(fmt::format(
      "{} usable {} - {} of dense weights - {} of keys and values for {} tokens - {} fixed = {} "
      "for "
      "experts",
      BytesText(advice.on_device ? room.device : room.memory),
      advice.on_device ? "on the GPU" : "in RAM", BytesText(f.dense_bytes), BytesText(f.kv_bytes),
      f.context, BytesText(f.fixed_bytes),
      BytesText(std::max<int64_t>(0, (advice.on_device ? room.device : room.memory) - beside))));
  if (!advice.fits) {
    lines.emplace_back("does not fit: what is no expert is held as a whole, and is too large");
    return advice;
  }
  for (const ExpertsAs& as : f.schemes) {
    advice.placements.push_back(Place(f, as, room, rates, advice.on_device));
  }
  AddTable(advice, &lines);
  AddAssumptions(f, rates, &advice);
  for (const Placement* p : Recommended(advice)) {
    const bool whole = advice.on_device ? p->tiers.device >= 1 : p->tiers.memory >= 1;
    lines.push_back(fmt::format(
        "{}{}:", p->as.stored ? "exactly as published" : "in fewer bits, " + p->as.scheme,
        !whole                       ? ""
        : f.kind == ModelKind::kGguf ? "; it fits: stock llama.cpp is as fast"
                                     : "; every expert stays in the fast tier"));
    for (const std::string& c : Commands(f, *p, advice.on_device)) lines.push_back("  " + c);
  }
  return advice;
}

nlohmann::json ToJson(const Advice& advice) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Placement& p : advice.placements) {
    rows.push_back(
        {{"scheme", p.as.scheme},
         {"stored", p.as.stored},
         {"bytes", p.as.bytes},
         {"token_bytes", p.as.token_bytes},
         {"budget_bytes", p.budget},
         {"tiers", {{"gpu", p.tiers.device}, {"memory", p.tiers.memory}, {"files", p.tiers.disk}}},
         {"tokens_per_s", {{"least", p.speed.least}, {"most", p.speed.most}}}});
  }
  return {{"fits", advice.fits},
          {"on_gpu", advice.on_device},
          {"placements", std::move(rows)},
          {"lines", advice.lines},
          {"assumptions", advice.assumptions}};
}

}  // namespace moert::cli
