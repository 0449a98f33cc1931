#include <cstdio>
#include <vector>
#include "moert/engine.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s MODEL_DIR\n", argv[0]), 2;
  auto fail = [](const absl::Status& s) { return std::fprintf(stderr, "%s\n", s.ToString().c_str()), 1; };
  auto source = moert::OpenModel(argv[1], {});
  if (!source.ok()) return fail(source.status());
  auto engine = moert::Engine::Create(*std::move(source), {.budget = moert::Budget::Fraction(0.25)});
  if (!engine.ok()) return fail(engine.status());
  const int64_t hidden = (*engine)->model().layers[0].hidden;
  std::vector<float> x(hidden), y(hidden);
  x[0] = 1;  // a hidden state from your attention block
  auto step = (*engine)->BeginStep({moert::Phase::kDecode, 1});
  if (!step.ok()) return fail(step.status());
  for (int layer = 0; layer < (*engine)->model().num_layers(); ++layer)
    if (auto s = (*engine)->Forward(*step, layer, {x.data(), moert::DType::kF32, 1, hidden, hidden},
                                    {y.data(), moert::DType::kF32, 1, hidden, hidden}); !s.ok()) return fail(s);
  if (auto s = (*engine)->EndStep(*step); !s.ok()) return fail(s);
  std::printf("last layer: %.3g %.3g %.3g ...\n", y[0], y[1], y[2]);
}
