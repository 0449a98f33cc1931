#include <moert.h>
#include <stdio.h>
#include <stdlib.h>
#define TRY(call) \
  if ((call) != MOERT_OK) return fprintf(stderr, "%s\n", moert_error_message(error)), 1

int main(int argc, char **argv) {
  moert_error *error; moert_source *source; moert_engine *engine; moert_step *step;
  moert_engine_options options; moert_layer_spec spec; moert_tensor x, y; float *data;
  if (argc != 2) return fprintf(stderr, "usage: %s MODEL_DIR\n", argv[0]), 2;
  TRY(moert_source_open(argv[1], NULL, &source, &error));
  moert_engine_options_init(&options, sizeof options);
  options.budget_fraction = 0.25; /* of the experts, in memory */
  TRY(moert_engine_create(source, &options, &engine, &error));
  moert_layer_spec_init(&spec, sizeof spec);
  TRY(moert_engine_layer(engine, 0, &spec, &error));
  data = calloc(2 * spec.hidden, sizeof *data);
  data[0] = 1; /* a hidden state from your attention block */
  moert_tensor_init(&x, data, 1, spec.hidden, MOERT_F32);
  moert_tensor_init(&y, data + spec.hidden, 1, spec.hidden, MOERT_F32);
  TRY(moert_step_begin(engine, NULL, &step, &error)); /* one token of decoding */
  for (int layer = 0; layer < moert_engine_layer_count(engine); ++layer)
    TRY(moert_layer_forward(step, layer, &x, NULL, &y, &error));
  TRY(moert_step_end(step, &error));
  const float *out = y.data;
  printf("last layer: %.3g %.3g %.3g ...\n", out[0], out[1], out[2]);
  free(data); moert_engine_destroy(engine); moert_source_destroy(source); return 0;
}
