/* A host in C99 with weights of its own: a quarter of the experts in memory, eight steps of
 * decoding, then all of them. examples/hello_layer, rust and go do the same and print the same. */
#include <stdio.h>

#include "tiny_experts.h"
#include "try.h"

int main(void) {
  moert_error *error = NULL;
  moert_source *source;
  moert_engine *engine;
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_engine_options options;
  moert_stats stats;
  float x[kTinyHidden], y[kTinyHidden];
  moert_tensor in, out;
  int token, i;

  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = tiny_read; /* fills rows of a matrix whenever an expert is needed */
  callbacks.weights_dtype = MOERT_F32;
  TRY(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));

  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.25;
  options.clock = MOERT_CLOCK_VIRTUAL; /* the same statistics on every machine */
  TRY(moert_engine_create(source, &options, &engine, &error));
  moert_source_destroy(source); /* the engine keeps its own reference */

  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, y, 1, kTinyHidden, MOERT_F32);
  for (token = 0; token < 8; ++token) {
    moert_step *step;
    int32_t layer;
    for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(token * kTinyHidden + i);
    TRY(moert_step_begin(engine, NULL, &step, &error)); /* one row of decoding */
    for (layer = 0; layer < moert_engine_layer_count(engine); ++layer) {
      TRY(moert_layer_forward(step, layer, &in, NULL, &out, &error));
      for (i = 0; i < kTinyHidden; ++i) x[i] += y[i]; /* the host's residual stream */
    }
    TRY(moert_step_end(step, &error));
    printf("token %d: %.6f %.6f %.6f\n", token, x[0], x[1], x[2]);
  }

  moert_stats_init(&stats, sizeof(stats));
  TRY(moert_engine_stats(engine, &stats, &error));
  printf("lookups %d, hits %d, loads %d, evictions %d, budget kept: %s\n", (int)stats.lookups,
         (int)stats.hits_resident, (int)stats.loads, (int)stats.evictions,
         stats.peak_bytes <= stats.budget_bytes ? "yes" : "no");
  if (moert_engine_set_budget(engine, 1, 0, &error) != MOERT_OK) {
    printf("one byte: %s\n", moert_code_name(moert_error_code(error)));
    moert_error_destroy(error);
  }
  TRY(moert_engine_set_budget(engine, 0, 1.0, &error)); /* live */
  moert_engine_destroy(engine);
  return 0;
}
