/* Sizes and offsets as they were released: a failure here is a broken promise, not a test to adapt.
 * Only lines for appended fields may be added. Compiled as C99 and as C++. */
#include <stddef.h>

#include "moert.h"

#define ABI_JOIN2(a, b) a##b
#define ABI_JOIN(a, b) ABI_JOIN2(a, b)
#define ABI_ASSERT(condition) typedef char ABI_JOIN(abi_assert_, __LINE__)[(condition) ? 1 : -1]
#define ABI_SIZE(type, size) ABI_ASSERT(sizeof(type) == (size))
#define ABI_FIELD(type, field, offset) ABI_ASSERT(offsetof(type, field) == (offset))
/* No tail padding: a field added there would not change the size. */
#define ABI_LAST(type, field, field_size) \
  ABI_ASSERT(offsetof(type, field) + (field_size) == sizeof(type))

ABI_SIZE(moert_code, 4);
ABI_SIZE(moert_dtype, 4);
ABI_ASSERT(MOERT_UNAUTHENTICATED == -16 && MOERT_INTERNAL == -13 && MOERT_CANCELLED == -1);
ABI_ASSERT(MOERT_F32 == 0 && MOERT_BF16 == 1 && MOERT_F16 == 2 && MOERT_U8 == 4);
ABI_ASSERT(MOERT_PREFILL == 0 && MOERT_DECODE == 1);
ABI_ASSERT(MOERT_ROUTING_SOFTMAX_TOPK == 0 && MOERT_ROUTING_TOPK_SOFTMAX == 1);
ABI_ASSERT(MOERT_ROUTING_SIGMOID_GROUPED == 2 && MOERT_ROUTING_SPARSEMIXER == 3);
ABI_ASSERT(MOERT_SILU == 0 && MOERT_GELU == 1 && MOERT_GELU_TANH == 2);
ABI_ASSERT(MOERT_NUMERICS_BF16 == 0 && MOERT_NUMERICS_F32 == 1 && MOERT_NUMERICS_INT8 == 2);
ABI_ASSERT(MOERT_CLOCK_WALL == 0 && MOERT_CLOCK_VIRTUAL == 1);
ABI_ASSERT(MOERT_PART_GATE_PROJ == 0 && MOERT_PART_ROUTER == 3 && MOERT_PART_RECORD == 6);
ABI_ASSERT(MOERT_SHARED_EXPERT == -1);

ABI_SIZE(moert_probe_info, 40);
ABI_FIELD(moert_probe_info, cpus, 8);
ABI_FIELD(moert_probe_info, cuda_built, 12);
ABI_FIELD(moert_probe_info, memory_bytes, 16);
ABI_FIELD(moert_probe_info, memory_available_bytes, 24);
ABI_FIELD(moert_probe_info, kernels, 32);
ABI_LAST(moert_probe_info, kernels, 8);

ABI_SIZE(moert_strategy_info, 32);
ABI_FIELD(moert_strategy_info, name, 8);
ABI_FIELD(moert_strategy_info, summary, 16);
ABI_FIELD(moert_strategy_info, keys, 24);
ABI_LAST(moert_strategy_info, keys, 8);

ABI_SIZE(moert_layer_spec, 80);
ABI_FIELD(moert_layer_spec, hidden, 8);
ABI_FIELD(moert_layer_spec, intermediate, 16);
ABI_FIELD(moert_layer_spec, shared_intermediate, 24);
ABI_FIELD(moert_layer_spec, model_layer, 32);
ABI_FIELD(moert_layer_spec, num_experts, 36);
ABI_FIELD(moert_layer_spec, top_k, 40);
ABI_FIELD(moert_layer_spec, routing, 44);
ABI_FIELD(moert_layer_spec, activation, 48);
ABI_FIELD(moert_layer_spec, shared_gate, 52);
ABI_FIELD(moert_layer_spec, renormalize, 56);
ABI_FIELD(moert_layer_spec, selection_bias, 60);
ABI_FIELD(moert_layer_spec, num_groups, 64);
ABI_FIELD(moert_layer_spec, top_groups, 68);
ABI_FIELD(moert_layer_spec, scaling, 72);
ABI_FIELD(moert_layer_spec, sparsemixer_eps, 76);
ABI_LAST(moert_layer_spec, sparsemixer_eps, 4);

ABI_SIZE(moert_open_options, 40);
ABI_FIELD(moert_open_options, cache_dir, 8);
ABI_FIELD(moert_open_options, user_data, 16);
ABI_FIELD(moert_open_options, log, 24);
ABI_FIELD(moert_open_options, progress, 32);
ABI_LAST(moert_open_options, progress, 8);

ABI_SIZE(moert_read, 72);
ABI_FIELD(moert_read, layer, 8);
ABI_FIELD(moert_read, expert, 12);
ABI_FIELD(moert_read, part, 16);
ABI_FIELD(moert_read, version, 20);
ABI_FIELD(moert_read, first_row, 24);
ABI_FIELD(moert_read, rows, 32);
ABI_FIELD(moert_read, cols, 40);
ABI_FIELD(moert_read, dst, 48);
ABI_FIELD(moert_read, dst_bytes, 56);
ABI_FIELD(moert_read, dtype, 64);
ABI_LAST(moert_read, reserved0, 4);

ABI_SIZE(moert_source_callbacks, 48);
ABI_FIELD(moert_source_callbacks, user_data, 8);
ABI_FIELD(moert_source_callbacks, read, 16);
ABI_FIELD(moert_source_callbacks, destroy, 24);
ABI_FIELD(moert_source_callbacks, schemes, 32);
ABI_FIELD(moert_source_callbacks, weights_dtype, 40);
ABI_LAST(moert_source_callbacks, reserved0, 4);

ABI_SIZE(moert_engine_options, 88);
ABI_FIELD(moert_engine_options, strategy, 8);
ABI_FIELD(moert_engine_options, budget_bytes, 16);
ABI_FIELD(moert_engine_options, budget_fraction, 24);
ABI_FIELD(moert_engine_options, max_tokens_per_forward, 32);
ABI_FIELD(moert_engine_options, numerics, 40);
ABI_FIELD(moert_engine_options, clock, 44);
ABI_FIELD(moert_engine_options, profile, 48);
ABI_FIELD(moert_engine_options, link_gbps, 56);
ABI_FIELD(moert_engine_options, seed, 64);
ABI_FIELD(moert_engine_options, threads, 72);
ABI_FIELD(moert_engine_options, io_threads, 76);
ABI_FIELD(moert_engine_options, kernels, 80);
ABI_LAST(moert_engine_options, kernels, 8);

ABI_SIZE(moert_memory, 96);
ABI_FIELD(moert_memory, budget_bytes, 8);
ABI_FIELD(moert_memory, constant_bytes, 16);
ABI_FIELD(moert_memory, table_bytes, 24);
ABI_FIELD(moert_memory, workspace_bytes, 32);
ABI_FIELD(moert_memory, block_bytes, 40);
ABI_FIELD(moert_memory, slots, 48);
ABI_FIELD(moert_memory, low_block_bytes, 56);
ABI_FIELD(moert_memory, low_slots, 64);
ABI_FIELD(moert_memory, spare_slots, 72);
ABI_FIELD(moert_memory, total_experts, 80);
ABI_FIELD(moert_memory, minimum_bytes, 88);
ABI_LAST(moert_memory, minimum_bytes, 8);

ABI_SIZE(moert_step_info, 24);
ABI_FIELD(moert_step_info, rows, 8);
ABI_FIELD(moert_step_info, phase, 16);
ABI_LAST(moert_step_info, reserved0, 4);

ABI_SIZE(moert_stats, 280);
ABI_FIELD(moert_stats, budget_bytes, 8);
ABI_FIELD(moert_stats, peak_bytes, 16);
ABI_FIELD(moert_stats, fixed_bytes, 24);
ABI_FIELD(moert_stats, pool_bytes, 32);
ABI_FIELD(moert_stats, lookups, 40);
ABI_FIELD(moert_stats, hits_resident, 48);
ABI_FIELD(moert_stats, hits_prefetched, 56);
ABI_FIELD(moert_stats, late, 64);
ABI_FIELD(moert_stats, loads, 72);
ABI_FIELD(moert_stats, bytes_loaded, 80);
ABI_FIELD(moert_stats, evictions, 88);
ABI_FIELD(moert_stats, low_answers, 96);
ABI_FIELD(moert_stats, cpu_computed, 104);
ABI_FIELD(moert_stats, prefetch_issued, 112);
ABI_FIELD(moert_stats, prefetch_useful, 120);
ABI_FIELD(moert_stats, prefetch_bytes, 128);
ABI_FIELD(moert_stats, prefetch_predicted, 136);
ABI_FIELD(moert_stats, prefetch_recalled, 144);
ABI_FIELD(moert_stats, slots, 152);
ABI_FIELD(moert_stats, slots_substituted, 160);
ABI_FIELD(moert_stats, mass, 168);
ABI_FIELD(moert_stats, mass_substituted, 176);
ABI_FIELD(moert_stats, promotions, 184);
ABI_FIELD(moert_stats, demotions, 192);
ABI_FIELD(moert_stats, deferred, 200);
ABI_FIELD(moert_stats, balance_load_ns, 208);
ABI_FIELD(moert_stats, balance_cpu_ns, 216);
ABI_FIELD(moert_stats, policy_fallbacks, 224);
ABI_FIELD(moert_stats, stall_miss_ns, 232);
ABI_FIELD(moert_stats, stall_queue_ns, 240);
ABI_FIELD(moert_stats, stall_staging_ns, 248);
ABI_FIELD(moert_stats, stall_cpu_ns, 256);
ABI_FIELD(moert_stats, host_syncs, 264);
ABI_FIELD(moert_stats, prefetch_disabled, 272);
ABI_FIELD(moert_stats, graph_captured, 276);
ABI_LAST(moert_stats, graph_captured, 4);

int main(void) { return 0; }
