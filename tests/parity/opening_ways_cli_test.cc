// Every fixture of tests/data/architectures, opened in every way there is: the ways that promise
// the same experts give the same bits, prompt and decode, and these are the reference library's
// logits. A fixture joins by being there; a new way joins Ways().
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "host/perplexity.h"
#include "moert/offline/open_as.h"
#include "moert/offline/quantize.h"
#include "support/architecture_fixture.h"
#include "support/c_runner.h"
#include "support/run_tool.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using test::ArchitectureDir;
using test::ArchitectureNames;
using test::ArchitectureRun;
using test::CRunner;
using test::DecoderRun;
using test::ReadReferenceCase;
using test::ReferenceCase;
using test::TempDir;

constexpr int64_t kMaxRows = 60;
constexpr char kEight[] = "w8a16_g128";

/// Folders that the ways of one fixture share: what one writes, another opens.
struct Places {
  explicit Places(const std::string& name) : model(ArchitectureDir(name)) {}
  const std::string model;
  TempDir folder;
  std::string cache() const { return folder / "cache"; }
  std::string pack(const std::string& scheme) const { return folder / ("pack-" + scheme); }
};

std::unique_ptr<DecoderRun> OverEngine(const Places& places, std::unique_ptr<ExpertSource> source,
                                       bool minimal = false) {
  EngineOptions options;
  options.threads = 1;
  options.max_tokens_per_forward = kMaxRows;
  options.activation = ActivationNumerics::kF32;
  return std::make_unique<ArchitectureRun>(places.model, std::move(source), options, minimal);
}

std::unique_ptr<DecoderRun> Opened(const Places& places, OpenMode mode, bool widen,
                                   const std::string& cache, bool minimal = false) {
  OpenModelOptions options;
  options.cache_dir = cache;
  options.mode = mode;
  options.widen = widen;
  auto source = OpenModel(places.model, options);
  REQUIRE_OK(source.status());
  return OverEngine(places, *std::move(source), minimal);
}

/// A pack that `moert-pack quantize` would write, once.
std::string Quantized(const Places& places, const std::string& scheme) {
  const std::string pack = places.pack(scheme);
  if (std::filesystem::exists(pack)) return pack;
  QuantizeJob job;
  job.model = places.model;
  job.out = pack;
  job.schemes = {*Scheme::Parse(scheme)};
  job.threads = 1;
  job.backend = BackendKind::kCpu;
  REQUIRE_OK(RunQuantizeJob(job));
  return pack;
}

std::unique_ptr<DecoderRun> Packed(const Places& places, const std::string& scheme) {
  auto source = OpenExpertPack(Quantized(places, scheme));
  REQUIRE_OK(source.status());
  return OverEngine(places, *std::move(source));
}

std::unique_ptr<DecoderRun> OnTheFly(const Places& places, const std::string& scheme) {
  OpenAsOptions options;
  options.cache_dir = places.cache();
  options.schemes = {*Scheme::Parse(scheme)};
  options.threads = 1;
  auto source = OpenModelAs(places.model, options);
  REQUIRE_OK(source.status());
  return OverEngine(places, *std::move(source));
}

struct CRun : DecoderRun {
  CRun(const Places& places, moert_source* source) : runner(source, kMaxRows) {
    Load(places.model, &runner);
  }
  CRunner runner;
};

std::unique_ptr<DecoderRun> ThroughC(const Places& places, const std::string& cache,
                                     moert_open_mode mode, bool widen) {
  moert_open_options options;
  moert_open_options_init(&options, sizeof(options));
  options.cache_dir = cache.c_str();
  options.mode = mode;
  options.widen = widen;
  moert_source* source = nullptr;
  moert_error* error = nullptr;
  REQUIRE_OK(
      test::FromC(moert_source_open(places.model.c_str(), &options, &source, &error), &error));
  return std::make_unique<CRun>(places, source);
}

std::unique_ptr<DecoderRun> PackedThroughC(const Places& places, const std::string& scheme) {
  moert_source* source = nullptr;
  moert_error* error = nullptr;
  REQUIRE_OK(test::FromC(moert_source_open_pack(Quantized(places, scheme).c_str(), &source, &error),
                         &error));
  return std::make_unique<CRun>(places, source);
}

/// One way to open a model. Those of a kind promise the same experts, to the bit.
struct Way {
  const char* kind;
  const char* name;
  std::function<std::unique_ptr<DecoderRun>(const Places&)> open;
};

std::vector<Way> Ways() {
  const auto opened = [](OpenMode mode, bool widen) {
    return [=](const Places& p) { return Opened(p, mode, widen, p.cache()); };
  };
  const auto nothing_cached = [](const Places& p) {
    return Opened(p, OpenMode::kPackIfThere, false, p.folder / "empty");
  };
  const auto through_c = [](moert_open_mode mode, bool widen) {
    return [=](const Places& p) { return ThroughC(p, p.cache(), mode, widen); };
  };
  const auto c_nothing_cached = [](const Places& p) {
    return ThroughC(p, p.folder / "empty", MOERT_OPEN_PACK_IF_THERE, false);
  };
  const auto smallest = [](const Places& p) {
    return Opened(p, OpenMode::kInPlace, false, p.cache(), /*minimal=*/true);
  };
  return {
      {"stored", "in place, nothing cached: the command line's default", nothing_cached},
      {"stored", "in place", opened(OpenMode::kInPlace, false)},
      {"stored", "in place, the smallest budget", smallest},
      {"stored", "packed", opened(OpenMode::kPack, false)},
      {"stored", "cached", opened(OpenMode::kPack, false)},
      {"stored", "cached, if there", opened(OpenMode::kPackIfThere, false)},
      {"stored", "C, in place, nothing cached: its default", c_nothing_cached},
      {"stored", "C, in place", through_c(MOERT_OPEN_IN_PLACE, false)},
      {"stored", "C, packed", through_c(MOERT_OPEN_PACK, false)},
      {"stored", "C, cached, if there", through_c(MOERT_OPEN_PACK_IF_THERE, false)},
      {"bf16", "in place, widened", opened(OpenMode::kInPlace, true)},
      {"bf16", "packed, widened", opened(OpenMode::kPack, true)},
      {"bf16", "cached, widened", opened(OpenMode::kPack, true)},
      {"bf16", "a pack", [](const Places& p) { return Packed(p, "bf16"); }},
      {"bf16", "quantized on the fly", [](const Places& p) { return OnTheFly(p, "bf16"); }},
      {"bf16", "C, in place, widened", through_c(MOERT_OPEN_IN_PLACE, true)},
      {"bf16", "C, cached, widened", through_c(MOERT_OPEN_PACK, true)},
      {"bf16", "C, a pack", [](const Places& p) { return PackedThroughC(p, "bf16"); }},
      {kEight, "a pack", [](const Places& p) { return Packed(p, kEight); }},
      {kEight, "quantized on the fly", [](const Places& p) { return OnTheFly(p, kEight); }},
      {kEight, "C, a pack", [](const Places& p) { return PackedThroughC(p, kEight); }},
  };
}

/// The largest difference from the reference at nine of ten positions, and at all of them: logits
/// have a standard deviation of 1, and rounding may tip an expert.
struct Difference {
  float most = 0, all = 0;
};

Difference FromReference(const std::vector<float>& got, const ReferenceCase& c, int64_t vocab) {
  REQUIRE(got.size() == c.logits.size());
  std::vector<float> by_position(got.size() / vocab);
  for (size_t i = 0; i < got.size(); ++i) {
    float& worst = by_position[i / vocab];
    worst = std::max(worst, std::fabs(got[i] - c.logits[i]));
  }
  std::sort(by_position.begin(), by_position.end());
  return {by_position[by_position.size() * 9 / 10], by_position.back()};
}

TEST_CASE("every fixture gives one set of numbers, however it is opened") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  const Places places(name);
  const ReferenceCase reference = ReadReferenceCase(name, "short");
  std::map<std::string, std::vector<float>> first;
  for (const Way& way : Ways()) {
    INFO(name << ": " << way.kind << ": " << way.name);
    const auto run = way.open(places);
    const std::vector<float> logits =
        run->Logits(reference, static_cast<int64_t>(reference.tokens.size()));
    const auto [known, is_first] = first.emplace(way.kind, logits);
    REQUIRE(known->second.size() == logits.size());
    CHECK(std::memcmp(known->second.data(), logits.data(), logits.size() * sizeof(float)) == 0);
    if (!is_first) continue;
    const Difference d = FromReference(logits, reference, run->config.vocab_size);
    INFO("differs by " << d.most << ", at most " << d.all);
    const bool widened = way.kind == std::string("bf16");
    const bool plain = run->config.quantization.form == StoredWeights::kPlain;
    if (widened || (plain && way.kind == std::string("stored"))) {
      CHECK(d.all < 1e-4f);
    } else {
      CHECK(d.most < 0.1f);  // another scheme than the reference's bf16
    }
  }
}

/// The tokens of a fixture's reference as a file, one sequence behind the other.
std::string TokenFile(const std::string& name, const Places& places) {
  std::string bytes;
  for (const std::vector<int32_t>& sequence : ReadReferenceCase(name, "short").tokens) {
    for (const int32_t id : sequence) {
      bytes += static_cast<char>(id & 0xff);
      bytes += static_cast<char>(id >> 8);
    }
  }
  const std::string path = places.folder / "tokens.u16";
  test::WriteFile(path, bytes);
  return path;
}

TEST_CASE("moert-run prints one perplexity a fixture, however it opens it") {
  const std::string name = GENERATE(from_range(ArchitectureNames()));
  const Places places(name);
  const std::string tokens = TokenFile(name, places);
  const int64_t window = static_cast<int64_t>(ReadReferenceCase(name, "short").tokens[0].size());
  const std::string pack = Quantized(places, "bf16"), eight = Quantized(places, kEight);
  const std::string fixed = "ppl --model " + places.model + " --tokens " + tokens + " --window " +
                            std::to_string(window) +
                            " --dtype f32 --backend cpu --quiet --json - --cache ";
  const std::string cache = places.cache(), empty = places.folder / "empty";
  const std::pair<std::string, std::string> ways[] = {
      {"stored", empty},
      {"stored", empty + " --budget 25%"},
      {"stored", empty + " --step-tokens 1"},
      {"stored", cache + " --pack"},
      {"stored", cache},
      {"bf16", cache + " --as bf16"},
      {"bf16", empty + " --experts " + pack},
      {kEight, cache + " --as " + kEight},
      {kEight, empty + " --experts " + eight},
  };
  std::map<std::string, double> first;
  for (const auto& [kind, way] : ways) {
    INFO(name << ": " << fixed << way);
    const test::Outcome outcome = test::RunTool("run", fixed + way, places.folder);
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
    const double nll = nlohmann::json::parse(outcome.out)["nll"];
    const auto [known, is_first] = first.emplace(kind, nll);
    CHECK(nll == Approx(known->second).epsilon(1e-12));
  }
  // The same decoder in this process, over the same experts.
  const auto run = Opened(places, OpenMode::kInPlace, false, places.cache());
  host::PerplexityOptions options;
  options.window = window;
  std::vector<int32_t> ids;
  for (const auto& sequence : ReadReferenceCase(name, "short").tokens) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
  }
  const auto result = host::Perplexity(run->decoder.get(), ids, options);
  REQUIRE_OK(result.status());
  CHECK(result->nll == Approx(first["stored"]).epsilon(1e-12));
}

}  // namespace
}  // namespace moert
