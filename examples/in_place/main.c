/* A host with a kernel of its own: libmoert keeps the experts under its budget and says where they
 * are, the host multiplies straight from those bytes. C99.
 *
 * For every token the host routes, leases the experts it chose, computes them, and compares with
 * what libmoert computes from the same routing. A lease pins: the pointers stay good until it is
 * released, whatever other threads load or evict meanwhile. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "c_host/tiny_experts.h"
#include "c_host/try.h"

static float from_bf16(uint32_t bits) {
  const uint32_t wide = bits << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

/* y[0, m->rows) = W x, W in the record's order (docs/reference/layout.md, bf16): blocks of 16 rows x
 * 16 k, in each 32 lanes of four words, lane = 4 g + t. */
static void multiply(const moert_expert_view* view, const moert_matrix* m, const float* x,
                     float* y) {
  const uint32_t* word =
      (const uint32_t*)((const char*)view->record + m->weight_offset); /* 256-byte aligned */
  int64_t row_block, k_block;
  memset(y, 0, (size_t)m->rows * sizeof(*y));
  for (row_block = 0; row_block < m->padded_rows; row_block += 16) {
    for (k_block = 0; k_block < m->padded_k; k_block += 16) {
      int lane, a;
      for (lane = 0; lane < 32; ++lane) {
        for (a = 0; a < 4; ++a, ++word) {
          const int64_t row = row_block + lane / 4 + (a & 1) * 8;
          const int64_t k = k_block + lane % 4 * 2 + (a & 2) * 4;
          if (row >= m->rows || k >= m->k) continue; /* padding */
          y[row] += from_bf16(*word & 0xffff) * x[k];
          if (k + 1 < m->k) y[row] += from_bf16(*word >> 16) * x[k + 1];
        }
      }
    }
  }
}

/* out += weight * down(silu(gate x) * (up x)) */
static void add_expert(const moert_expert_view* view, const float* x, float weight, float* out) {
  float gate[kTinyIntermediate], up[kTinyIntermediate], y[kTinyHidden];
  int i;
  multiply(view, &view->gate, x, gate);
  multiply(view, &view->up, x, up);
  for (i = 0; i < kTinyIntermediate; ++i) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
  multiply(view, &view->down, gate, y);
  for (i = 0; i < kTinyHidden; ++i) out[i] += weight * y[i];
}

static moert_error* error;

static int open_engine(moert_engine** engine) {
  moert_source* source;
  moert_layer_spec layers[kTinyLayers];
  moert_source_callbacks callbacks;
  moert_engine_options options;
  tiny_layers(layers);
  moert_source_callbacks_init(&callbacks, sizeof(callbacks));
  callbacks.read = tiny_read;
  callbacks.weights_dtype = MOERT_F32;
  TRY(moert_source_create("tiny", layers, kTinyLayers, &callbacks, &source, &error));
  moert_engine_options_init(&options, sizeof(options));
  options.budget_fraction = 0.25;
  options.numerics = MOERT_NUMERICS_F32; /* as the kernel above: activations are not rounded */
  TRY(moert_engine_create(source, &options, engine, &error));
  moert_source_destroy(source);
  return 0;
}

/* out: the experts' weighted sum for x, from their records. */
static int compute(moert_step* step, int32_t layer, const int32_t* experts, const float* weights,
                   const float* x, float* out) {
  moert_lease* lease;
  moert_expert_view view;
  int i;
  memset(out, 0, kTinyHidden * sizeof(*out));
  TRY(moert_lease_acquire(step, layer, experts, kTinyTopK, &lease, &error));
  moert_expert_view_init(&view, sizeof(view));
  for (i = 0; i < kTinyTopK; ++i) {
    TRY(moert_lease_view(lease, i, &view, &error));
    if (strcmp(view.gate.scheme, "bf16") != 0 || strcmp(view.down.scheme, "bf16") != 0) {
      fprintf(stderr, "this kernel reads bf16, not %s\n", view.gate.scheme);
      return 1;
    }
    add_expert(&view, x, weights[i], out);
  }
  moert_lease_release(lease);
  return 0;
}

int main(void) {
  moert_engine* engine;
  moert_stats stats;
  float x[kTinyHidden], mine[kTinyHidden], theirs[kTinyHidden];
  moert_tensor in, out;
  double worst = 0, largest = 0;
  int token, i;

  if (open_engine(&engine) != 0) return 1;
  moert_tensor_init(&in, x, 1, kTinyHidden, MOERT_F32);
  moert_tensor_init(&out, theirs, 1, kTinyHidden, MOERT_F32);
  for (token = 0; token < 32; ++token) {
    moert_step* step;
    int32_t layer;
    TRY(moert_step_begin(engine, NULL, &step, &error));
    for (i = 0; i < kTinyHidden; ++i) x[i] = tiny_input(token * kTinyHidden + i);
    for (layer = 0; layer < kTinyLayers; ++layer) {
      /* The host's own router: here, any two experts. */
      const int32_t ids[kTinyTopK] = {(token * 3 + layer) % kTinyExperts,
                                      (token * 5 + layer + 4) % kTinyExperts};
      const int32_t other = (ids[0] + 1) % kTinyExperts;
      int32_t experts[kTinyTopK] = {ids[0], ids[1] == ids[0] ? other : ids[1]};
      float weights[kTinyTopK] = {0.75f, 0.25f};
      moert_routing routing;
      if (compute(step, layer, experts, weights, x, mine) != 0) return 1;
      moert_routing_init(&routing, sizeof(routing));
      moert_tensor_init(&routing.ids, experts, 1, kTinyTopK, MOERT_I32);
      moert_tensor_init(&routing.weights, weights, 1, kTinyTopK, MOERT_F32);
      TRY(moert_layer_forward(step, layer, &in, &routing, &out, &error));
      for (i = 0; i < kTinyHidden; ++i) {
        worst = fmax(worst, fabs(mine[i] - theirs[i]));
        largest = fmax(largest, fabs(theirs[i]));
        x[i] += theirs[i];
      }
    }
    TRY(moert_step_end(step, &error));
  }

  moert_stats_init(&stats, sizeof(stats));
  TRY(moert_engine_stats(engine, &stats, &error));
  moert_engine_destroy(engine);
  printf("64 layers computed in place, largest value %.3g, largest difference %.2g\n", largest,
         worst);
  printf("loads %d, evictions %d, budget kept: %s\n", (int)stats.loads, (int)stats.evictions,
         stats.peak_bytes <= stats.budget_bytes ? "yes" : "no");
  return largest > 0.01 && worst <= 1e-5 * largest && stats.evictions > 0 ? 0 : 1;
}
