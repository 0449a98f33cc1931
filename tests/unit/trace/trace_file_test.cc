// Writing and reading traces, and what a damaged one answers.
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/bf16.h"
#include "base/hash64.h"
#include "moert/tools/trace.h"
#include "support/catch.h"
#include "support/paths.h"
#include "support/run_engine.h"
#include "support/synthetic_source.h"
#include "support/temp_dir.h"
#include "support/tiny_trace.h"

namespace moert {
namespace {

using test::HiddenProcess;
using test::ReadFile;
using test::RunStep;
using test::SyntheticShape;
using test::SyntheticSource;
using test::TempDir;
using test::WriteFile;

/// Keeps what a sink saw.
class Memory final : public TraceSink {
 public:
  struct Kept {
    TraceCall call;
    std::vector<int64_t> request_ids;
    std::vector<int32_t> ids;
    std::vector<float> weights, scores, next_scores;
  };
  void OnCall(const TraceCall& c) override {
    calls.push_back({c,
                     {c.request_ids.begin(), c.request_ids.end()},
                     {c.ids.begin(), c.ids.end()},
                     {c.weights.begin(), c.weights.end()},
                     {c.scores.begin(), c.scores.end()},
                     {c.next_scores.begin(), c.next_scores.end()}});
  }
  void OnSpan(const TimelineSpan& s) override { ++spans; }
  std::vector<Kept> calls;
  int spans = 0;
};

/// Sends everything to two sinks.
class Tee final : public TraceSink {
 public:
  Tee(TraceSink* a, TraceSink* b) : a_(a), b_(b) {}
  void OnCall(const TraceCall& c) override { a_->OnCall(c), b_->OnCall(c); }
  void OnSpan(const TimelineSpan& s) override { a_->OnSpan(s), b_->OnSpan(s); }

 private:
  TraceSink *a_, *b_;
};

/// Records a prefill step and some decode steps.
void Record(const std::string& path, ClockKind clock, Memory* memory) {
  const auto source = std::make_shared<SyntheticSource>(SyntheticShape{3, 10, 2, 64, 48, 32});
  auto file = CreateTraceFiles({path, path + ".json"}, MakeTraceHeader(*source, 512));
  REQUIRE_OK(file.status());
  EngineOptions options;
  options.budget = Budget::Fraction(0.4);
  options.clock = clock;
  options.threads = 1;
  options.trace = std::make_shared<Tee>(memory, file->get());
  auto engine = Engine::Create(source, options);
  REQUIRE_OK(engine.status());
  HiddenProcess process(64, 1);
  std::vector<float> out;
  REQUIRE_OK(RunStep(engine->get(), Phase::kPrefill, process.Next(9), 9, &out));
  for (int s = 0; s < 5; ++s) {
    const std::vector<int64_t> requests = {7, 11};
    const std::vector<float> x = process.Next(2);
    auto step = (*engine)->BeginStep({Phase::kDecode, 2, requests});
    REQUIRE_OK(step.status());
    std::vector<float> y(x.size());
    for (int l = 0; l < 3; ++l) {
      REQUIRE_OK((*engine)->Forward(*step, l, {x.data(), DType::kF32, 2, 64, 64},
                                    {y.data(), DType::kF32, 2, 64, 64}));
    }
    REQUIRE_OK((*engine)->EndStep(*step));
  }
  REQUIRE_OK((*file)->Close());
}

TEST_CASE("a trace reads back as it was recorded") {
  const TempDir dir;
  const std::string path = dir / "trace";
  const ClockKind clock = GENERATE(ClockKind::kWall, ClockKind::kVirtual);
  Memory memory;
  Record(path, clock, &memory);
  REQUIRE(memory.calls.size() == 18);

  auto reader = OpenTrace(path);
  REQUIRE_OK(reader.status());
  const TraceHeader& header = (*reader)->header();
  const SyntheticSource source(SyntheticShape{3, 10, 2, 64, 48, 32});
  CHECK(header.model == source.model());
  REQUIRE(header.versions.size() == 1);
  CHECK(header.versions[0].name == "bf16");
  CHECK(header.versions[0].bytes[2][9] == source.layout(2, 9, 0).bytes);
  for (int pass = 0; pass < 2; ++pass) {
    for (const Memory::Kept& kept : memory.calls) {
      auto call = (*reader)->Next();
      REQUIRE_OK(call.status());
      REQUIRE(*call != nullptr);
      const TraceCall& c = **call;
      CHECK(c.step == kept.call.step);
      CHECK(c.phase == kept.call.phase);
      CHECK(c.layer == kept.call.layer);
      CHECK(c.tokens == kept.call.tokens);
      CHECK(c.request_ids == absl::MakeConstSpan(kept.request_ids));
      CHECK(c.ids == absl::MakeConstSpan(kept.ids));
      CHECK(c.weights == absl::MakeConstSpan(kept.weights));
      CHECK(c.scores == absl::MakeConstSpan(kept.scores));
      CHECK(c.scores.size() == static_cast<size_t>(c.tokens) * 10);
      CHECK(c.next_scores == absl::MakeConstSpan(kept.next_scores));
      CHECK(c.next_scores.size() == static_cast<size_t>(c.tokens) * 10);
      CHECK(std::memcmp(&c.times, &kept.call.times, sizeof(CallTimes)) == 0);
      CHECK(c.times.end_ns > c.times.begin_ns);
      CHECK(c.times.other_ns() >= 0);
    }
    auto end = (*reader)->Next();
    REQUIRE_OK(end.status());
    CHECK(*end == nullptr);
    REQUIRE_OK((*reader)->Rewind());
  }
}

/// The trace as version 1 or 2 had it.
std::string InOlderVersion(const std::string& whole, const std::string& path, uint32_t version) {
  std::string old = whole.substr(0, 12);
  const auto put = [&old](auto value) {
    old.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto put_checksum = [&](size_t from) {
    if (version > 1) put(Hash64(absl::string_view(old).substr(from)));
  };
  std::memcpy(old.data() + 8, &version, 4);
  uint32_t header = 0;
  std::memcpy(&header, whole.data() + 12, 4);
  old += whole.substr(12, 4 + header);
  put_checksum(0);
  auto reader = OpenTrace(path);
  REQUIRE_OK(reader.status());
  for (size_t at = 16 + header + 8; at < whole.size();) {
    auto call = (*reader)->Next();
    REQUIRE_OK(call.status());
    const TraceCall& c = **call;
    const size_t begin = old.size();
    old += whole.substr(at, 24 + 48 + 8 * c.request_ids.size() + 2 * c.ids.size());
    for (const auto values : {c.weights, c.scores, c.next_scores}) {
      for (const float value : values) put(F32ToF16(value));
    }
    const uint64_t bytes = old.size() - begin + (version > 1 ? 8 : 0);
    std::memcpy(old.data() + begin, &bytes, 8);
    put_checksum(begin);
    uint64_t next = 0;
    std::memcpy(&next, whole.data() + at, 8);
    at += next;
  }
  return old;
}

TEST_CASE("traces of older versions are read, with scores of half the precision") {
  const TempDir dir;
  const std::string path = dir / "t";
  Memory memory;
  Record(path, ClockKind::kVirtual, &memory);
  const auto version = GENERATE(uint32_t{1}, uint32_t{2});
  WriteFile(dir / "old", InOlderVersion(ReadFile(path), path, version));
  auto reader = OpenTrace(dir / "old");
  REQUIRE_OK(reader.status());
  const auto rounded = [](std::vector<float> values) {
    for (float& value : values) value = F16ToF32(F32ToF16(value));
    return values;
  };
  for (const Memory::Kept& kept : memory.calls) {
    auto call = (*reader)->Next();
    REQUIRE_OK(call.status());
    REQUIRE(*call != nullptr);
    CHECK((*call)->ids == absl::MakeConstSpan(kept.ids));
    CHECK((*call)->weights == absl::MakeConstSpan(rounded(kept.weights)));
    CHECK((*call)->scores == absl::MakeConstSpan(rounded(kept.scores)));
    CHECK((*call)->next_scores == absl::MakeConstSpan(rounded(kept.next_scores)));
  }
  auto end = (*reader)->Next();
  REQUIRE_OK(end.status());
  CHECK(*end == nullptr);
}

TEST_CASE("the timeline is JSON with every span once") {
  const TempDir dir;
  Memory memory;
  Record(dir / "t", ClockKind::kWall, &memory);
  const nlohmann::json json = nlohmann::json::parse(ReadFile(dir / "t.json"));
  int spans = 0, steps = 0, link = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    CHECK(event["dur"].get<double>() >= 0);
    steps += event["tid"] == 0;
    link += event["tid"].get<int>() >= 3;
  }
  CHECK(spans == memory.spans);
  CHECK(steps == 6);
  CHECK(link > 0);
}

TEST_CASE("every cut of a trace is an error or a shorter trace, never more") {
  const TempDir dir;
  Memory memory;
  Record(dir / "t", ClockKind::kVirtual, &memory);
  const std::string whole = ReadFile(dir / "t");
  std::vector<size_t> cuts;
  for (size_t n = 0; n < whole.size(); n += n < 64 ? 1 : 193) cuts.push_back(n);
  for (const size_t n : cuts) {
    WriteFile(dir / "cut", whole.substr(0, n));
    auto reader = OpenTrace(dir / "cut");
    size_t calls = 0;
    absl::Status status = reader.status();
    while (status.ok()) {
      const auto call = (*reader)->Next();
      status = call.status();
      if (!status.ok() || *call == nullptr) break;
      ++calls;
    }
    INFO("cut at " << n);
    CHECK(calls < memory.calls.size());
    if (status.ok()) {
      CHECK(calls > 0);  // cut between two calls
    } else {
      CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_CASE("a damaged byte is an error, wherever it is") {
  const TempDir dir;
  Memory memory;
  Record(dir / "t", ClockKind::kVirtual, &memory);
  const std::string whole = ReadFile(dir / "t");
  int errors = 0, flips = 0;
  for (size_t at = 0; at < whole.size(); at += at < 2000 ? 7 : 211) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      WriteFile(dir / "damaged", damaged);
      auto reader = OpenTrace(dir / "damaged");
      absl::Status status = reader.status();
      for (size_t calls = 0; status.ok(); ++calls) {
        REQUIRE(calls < 1000);
        const auto call = (*reader)->Next();
        status = call.status();
        if (!status.ok() || *call == nullptr) break;
        const MoeLayerSpec& layer = (*reader)->header().model.layers[(*call)->layer];
        for (const int32_t id : (*call)->ids) REQUIRE((id >= 0 && id < layer.num_experts));
      }
      errors += !status.ok();
      ++flips;
    }
  }
  CHECK(errors == flips);
}

TEST_CASE("fields out of range are named") {
  const TempDir dir;
  Memory memory;
  Record(dir / "t", ClockKind::kVirtual, &memory);
  const std::string whole = ReadFile(dir / "t");
  uint32_t header = 0;
  std::memcpy(&header, whole.data() + 12, 4);
  const size_t call = 16 + header + 8;
  const auto answer = [&](size_t at, const std::string& bytes) {
    std::string changed = whole;
    changed.replace(at, bytes.size(), bytes);
    WriteFile(dir / "changed", changed);
    auto reader = OpenTrace(dir / "changed");
    if (!reader.ok()) return std::string(reader.status().message());
    return std::string((*reader)->Next().status().message());
  };
  using Catch::Contains;
  CHECK_THAT(answer(0, "M"), Contains("not a routing trace"));
  CHECK_THAT(answer(8, "\x09"), Contains("version 9"));
  CHECK_THAT(answer(12, "\xff\xff\xff\x7f"), Contains("header of"));
  CHECK_THAT(answer(call, "\xff"), Contains("its fields take"));
  CHECK_THAT(answer(call + 8, "\x02"), Contains("phase 2"));
  CHECK_THAT(answer(call + 9, "\x40"), Contains("unknown flags"));
  CHECK_THAT(answer(call + 10, "\x03"), Contains("layer 3: the model has 3"));
  CHECK_THAT(answer(call + 12, std::string(4, '\0')), Contains("0 tokens"));
  CHECK_THAT(answer(call + 12, "\xff\xff\xff\x7f"), Contains("tokens"));
  CHECK_THAT(answer(call + 24, std::string(8, '\x7f')), Contains("time"));
  // 9 tokens of a prefill step, no request ids: the ids follow the times.
  CHECK_THAT(answer(call + 72, std::string("\x0a\0", 2)), Contains("expert 10 does not exist"));
  CHECK_THAT(answer(call + 72, whole.substr(call + 74, 2)), Contains("comes twice"));
  CHECK_THAT(answer(call + 72 + 36, std::string("\0\0\x80\x7f", 4)), Contains("not finite"));
}

TEST_CASE("the recorded routing of the trained model is a trace") {
  TraceHeader header = test::TinyTraceHeader();
  const std::string path = SourceDir() + "/tests/data/traces/tiny-wikitext2.safetensors";
  auto reader = OpenRecordedRouting(path, header);
  REQUIRE_OK(reader.status());
  int64_t calls = 0, recalled = 0, predicted = 0;
  std::vector<float> predicted_scores;
  while (true) {
    auto call = (*reader)->Next();
    REQUIRE_OK(call.status());
    if (*call == nullptr) break;
    const TraceCall& c = **call;
    REQUIRE(c.layer == calls % 8);
    REQUIRE(c.step == calls / 8);
    ++calls;
    for (int j = 0; j + 1 < 4; ++j) REQUIRE(c.weights[j] >= c.weights[j + 1]);
    // The file's own claim: recall of the true 4 among the 8 highest predicted.
    for (const int32_t id : c.ids) {
      if (predicted_scores.empty()) break;
      int above = 0;
      for (const float s : predicted_scores) above += s > predicted_scores[id];
      recalled += above < 8;
      ++predicted;
    }
    predicted_scores.assign(c.next_scores.begin(), c.next_scores.end());
  }
  CHECK(calls == 3 * 512 * 8);
  CHECK(static_cast<double>(recalled) / static_cast<double>(predicted) ==
        Approx(0.973).margin(0.002));

  header.model.layers.pop_back();
  header.versions[0].bytes.pop_back();
  CHECK_THAT(std::string(OpenRecordedRouting(path, header).status().message()),
             Catch::Contains("the model wants"));
}

}  // namespace
}  // namespace moert
