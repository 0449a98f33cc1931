// A whole decode step of the example decoder waits for the device once, for the token: counted
// below the runtime by driver_counter.cc, which is preloaded.
#include <dlfcn.h>

#include <cstdio>

#include "device_model.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace moert::test {
namespace {

long long Calls(int kind) {
  using Count = long long (*)(int);
  static const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "moert_driver_calls"));
  REQUIRE(count != nullptr);  // run with LD_PRELOAD=libmoert_driver_counter.so
  return count(kind);
}

void Check(const std::string& strategy, bool twins, bool graphs) {
  INFO(strategy << (graphs ? " graphs" : " eager"));
  TempDir cache;
  DeviceModelOptions options;
  options.strategy = strategy;
  options.twins = twins;
  options.decoder.graphs = graphs;
  DeviceModel model(TinyModelDir(), cache.path(), options);
  auto sequence = model.decoder->NewSequence(200);
  REQUIRE_OK(sequence.status());
  std::vector<int32_t> tokens = {514, 3360, 287, 265, 1702};
  const host::SequenceInput prompt = {sequence->get(), 0, tokens};
  REQUIRE_OK(model.decoder->Run(host::StepPhase::kPrefill, {&prompt, 1}));
  auto token = model.decoder->Best(4);
  REQUIRE_OK(token.status());
  const auto step = [&] {
    const int32_t last = *token;
    const host::SequenceInput input = {sequence->get(), 0, {&last, 1}};
    REQUIRE_OK(model.decoder->Run(host::StepPhase::kDecode, {&input, 1}));
    token = model.decoder->Best(0);
    REQUIRE_OK(token.status());
  };
  for (int i = 0; i < 4; ++i) step();  // what is loaded and recorded at first

  constexpr int kSteps = 40;
  const long long waits = Calls(0), launches = Calls(1), replays = Calls(2), copies = Calls(3);
  const int64_t replayed = model.decoder->replays();
  for (int i = 0; i < kSteps; ++i) step();
  CHECK(Calls(0) - waits == kSteps);  // the token, and nothing else
  CHECK(Calls(2) - replays == model.decoder->replays() - replayed);
  if (!graphs) {
    CHECK(Calls(2) == replays);
    CHECK(Calls(1) - launches > kSteps * 8 * 6);
  } else if (!twins) {
    CHECK(Calls(2) - replays == kSteps);
    CHECK(Calls(1) == launches);
    // The step's inputs, and behind it the counts of who was selected.
    CHECK(Calls(3) - copies > kSteps);
    CHECK(Calls(3) - copies <= 2 * kSteps);
  } else {
    CHECK(Calls(2) - replays == kSteps);
  }
  CHECK(model.engine->stats().host_syncs == 0);
  std::printf(
      "%s, %s: %d steps, %lld waits, %lld graph launches, %lld single launches, %lld copies\n",
      strategy.c_str(), graphs ? "graphs" : "eager", kSteps, Calls(0) - waits, Calls(2) - replays,
      Calls(1) - launches, Calls(3) - copies);
}

TEST_CASE("one wait a decode step") {
  for (const bool graphs : {false, true}) {
    Check("resident", false, graphs);
    Check("dynaexq:hi=high,lo=low,interval_ms=0.001,hi_fraction=0.3", true, graphs);
  }
}

}  // namespace
}  // namespace moert::test
