// A strategy of the host whose policies are rules: `host-fate` (host_fate.h) decodes with a quarter
// of the experts in memory and decides as the built-in `fate` does, load by load.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "moert/engine.h"
#include "own_rules/host_fate.h"
#include "tiny_model.h"

namespace {

struct Run {
  moert::EngineStats stats;
  std::vector<float> outputs;
  bool exact = false;
};

/// Decodes on the virtual clock, so that the same decisions take the same time everywhere.
absl::StatusOr<Run> Decode(const std::string& strategy) {
  auto source = tiny::MakeSource();
  if (!source.ok()) return source.status();
  moert::EngineOptions options;
  options.strategy = strategy;
  options.budget = moert::Budget::Fraction(0.25);
  options.clock = moert::ClockKind::kVirtual;
  auto engine = moert::Engine::Create(*source, options);
  if (!engine.ok()) return engine.status();
  auto outputs = tiny::Outputs(engine->get());
  if (!outputs.ok()) return outputs.status();
  return Run{(*engine)->stats(), *std::move(outputs), (*engine)->exact()};
}

void Print(const char* strategy, const Run& run) {
  std::printf("%-10s %5lld lookups, %4lld hits, %4lld loads, %4lld evictions, %4lld prefetches\n",
              strategy, static_cast<long long>(run.stats.lookups),
              static_cast<long long>(run.stats.hits_resident),
              static_cast<long long>(run.stats.loads), static_cast<long long>(run.stats.evictions),
              static_cast<long long>(run.stats.prefetch_issued));
}

bool SameDecisions(const moert::EngineStats& a, const moert::EngineStats& b) {
  return a.lookups == b.lookups && a.hits_resident == b.hits_resident && a.loads == b.loads &&
         a.evictions == b.evictions && a.prefetch_issued == b.prefetch_issued;
}

}  // namespace

int main() {
  absl::Status status = own_rules::Register();
  const auto mine = Decode("host-fate");
  const auto builtin = Decode("fate");
  status.Update(mine.status());
  status.Update(builtin.status());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  Print("host-fate", *mine);
  Print("fate", *builtin);
  const bool same = SameDecisions(mine->stats, builtin->stats) && mine->outputs == builtin->outputs;
  std::printf("%s\n", same ? "the same decisions" : "other decisions");
  return same && mine->exact ? 0 : 1;
}
