#include <moert.h>
#include <stdio.h>
#define TRY(call) \
  if ((call) != MOERT_OK) return fprintf(stderr, "%s\n", moert_error_message(error)), 1

int main(int argc, char **argv) {
  static float x[8192] = {1}, y[8192];
  moert_error *error; moert_source *source; moert_engine *engine; moert_step *step;
  moert_engine_options options; moert_step_info info;
  if (argc != 2) return fprintf(stderr, "usage: %s MODEL_DIR\n", argv[0]), 2;
  TRY(moert_source_open(argv[1], NULL, &source, &error));
  moert_engine_options_init(&options, sizeof options);
  options.budget_fraction = 0.25; /* of the experts, in memory */
  TRY(moert_engine_create(source, &options, &engine, &error));
  moert_step_info_init(&info, sizeof info); /* one token of decoding */
  TRY(moert_step_begin(engine, &info, NULL, NULL, NULL, &step, &error));
  for (int layer = 0; layer < moert_engine_layer_count(engine); ++layer)
    TRY(moert_layer_forward(step, layer, x, 8192, MOERT_F32, 1, y, NULL, &error));
  TRY(moert_step_end(step, &error));
  printf("last layer: %.3g %.3g %.3g ...\n", y[0], y[1], y[2]);
  moert_engine_destroy(engine); moert_source_destroy(source); return 0;
}
