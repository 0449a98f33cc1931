/* A host with a format and kernels of its own, in C99: experts of int8 rows with a scale a row,
 * contiguous in memory that the host keeps (a mapped file, say). libmoert keeps a quarter of them
 * in slots and brings what is missing; the products below read the slots. Their results are
 * compared, bit for bit, with the same products over all weights. */
#include <stdio.h>
#include <string.h>

#include "c_host/try.h"
#include "moert.h"

enum { kLayers = 3, kExperts = 16, kTopK = 2, kHidden = 48, kInner = 32, kTokens = 24 };

/* One projection of one expert: scales of its rows, then the rows. */
struct up {
  float scale[kInner];
  int8_t rows[kInner][kHidden];
};
struct down {
  float scale[kHidden];
  int8_t rows[kHidden][kInner];
};

static struct up all_up[kLayers][kExperts];
static struct down all_down[kLayers][kExperts];

static unsigned next_random(void) {
  static unsigned state = 12345;
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static int8_t next_weight(void) { return (int8_t)((int)(next_random() % 255) - 127); }

static void fill_weights(void) {
  int l, e, r, k;
  for (l = 0; l < kLayers; ++l) {
    for (e = 0; e < kExperts; ++e) {
      for (r = 0; r < kInner; ++r) {
        all_up[l][e].scale[r] = 0.001f * (float)(1 + next_random() % 9);
        for (k = 0; k < kHidden; ++k) all_up[l][e].rows[r][k] = next_weight();
      }
      for (r = 0; r < kHidden; ++r) {
        all_down[l][e].scale[r] = 0.001f * (float)(1 + next_random() % 9);
        for (k = 0; k < kInner; ++k) all_down[l][e].rows[r][k] = next_weight();
      }
    }
  }
}

/* The host's kernel: y += weight * down(relu(up(x))), wherever the expert lies. */
static void multiply(const struct up *up, const struct down *down, float weight, const float *x,
                     float *y) {
  float h[kInner];
  int r, k;
  for (r = 0; r < kInner; ++r) {
    float sum = 0;
    for (k = 0; k < kHidden; ++k) sum += (float)up->rows[r][k] * x[k];
    h[r] = sum > 0 ? sum * up->scale[r] : 0;
  }
  for (r = 0; r < kHidden; ++r) {
    float sum = 0;
    for (k = 0; k < kInner; ++k) sum += (float)down->rows[r][k] * h[k];
    y[r] += weight * sum * down->scale[r];
  }
}

/* The host's router: some experts are more popular than others. */
static void route(int layer, int token, int32_t *ids) {
  ids[0] = (int32_t)((token / 3 + layer) % 5);
  ids[1] = (int32_t)(5 + (token * 7 + layer * 3) % (kExperts - 5));
}

static moert_error *error;

static int open_engine(moert_engine **engine) {
  moert_layer_spec layers[kLayers];
  moert_opaque_part parts[2 * kLayers];
  moert_engine_options options;
  moert_source *source;
  int l;
  for (l = 0; l < kLayers; ++l) {
    moert_layer_spec_init(&layers[l], sizeof(layers[l]));
    layers[l].model_layer = l;
    layers[l].num_experts = kExperts;
    layers[l].hidden = kHidden;
    layers[l].intermediate = kInner;
    layers[l].routing = MOERT_ROUTING_EXTERNAL;
    layers[l].top_k = kTopK;
    moert_opaque_part_init(&parts[2 * l], sizeof(parts[0]));
    parts[2 * l].layer = l;
    parts[2 * l].bytes = sizeof(struct up);
    parts[2 * l].memory = all_up[l]; /* expert e is bytes further, e times */
    parts[2 * l].alignment = 64;
    parts[2 * l + 1] = parts[2 * l];
    parts[2 * l + 1].bytes = sizeof(struct down);
    parts[2 * l + 1].memory = all_down[l];
  }
  TRY(moert_source_create_opaque("own format", layers, kLayers, parts, 2 * kLayers, NULL, &source,
                                 &error));
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.25;
  TRY(moert_engine_create(source, &options, engine, &error));
  moert_source_destroy(source);
  return 0;
}

/* Adds a layer's output to x, from the library's slots, and to same_x, from all weights. */
static int run_layer(moert_step *step, int l, int token, float *x, float *same_x) {
  int32_t ids[kTopK], slot_ids[kTopK];
  float y[kHidden] = {0}, same_y[kHidden] = {0};
  moert_fetch fetch;
  moert_slots slots;
  int i, j;
  route(l, token, ids);
  moert_fetch_init(&fetch, sizeof(fetch));
  moert_tensor_init(&fetch.ids, ids, 1, kTopK, MOERT_I32);
  moert_tensor_init(&fetch.slot_ids, slot_ids, 1, kTopK, MOERT_I32);
  moert_slots_init(&slots, sizeof(slots));
  TRY(moert_layer_fetch(step, l, &fetch, &slots, &error)); /* both are there and stay */
  for (j = 0; j < kTopK; ++j) {
    const char *up = (const char *)slots.base[0] + slot_ids[j] * slots.stride[0];
    const char *down = (const char *)slots.base[1] + slot_ids[j] * slots.stride[1];
    multiply((const struct up *)up, (const struct down *)down, 0.5f, x, y);
    multiply(&all_up[l][ids[j]], &all_down[l][ids[j]], 0.5f, same_x, same_y);
  }
  TRY(moert_slots_release(step, l, &error));
  for (i = 0; i < kHidden; ++i) {
    x[i] += y[i];
    same_x[i] += same_y[i];
  }
  return 0;
}

int main(void) {
  moert_engine *engine;
  moert_stats stats;
  float x[kHidden], same_x[kHidden];
  int l, token, i, same = 1;

  fill_weights();
  if (open_engine(&engine) != 0) return 1;
  for (token = 0; token < kTokens; ++token) {
    moert_step *step;
    for (i = 0; i < kHidden; ++i) x[i] = same_x[i] = (float)((token * 31 + i * 7) % 17 - 8) / 16;
    TRY(moert_step_begin(engine, NULL, &step, &error));
    for (l = 0; l < kLayers; ++l) {
      if (run_layer(step, l, token, x, same_x) != 0) return 1;
    }
    TRY(moert_step_end(step, &error));
    same = same && memcmp(x, same_x, sizeof(x)) == 0;
  }
  moert_stats_init(&stats, sizeof(stats));
  TRY(moert_engine_stats(engine, &stats, &error));
  printf("%d lookups, %d loads, %d evictions; the same to the bit: %s\n", (int)stats.lookups,
         (int)stats.loads, (int)stats.evictions, same ? "yes" : "no");
  moert_engine_destroy(engine);
  return same && stats.evictions > 0 ? 0 : 1;
}
