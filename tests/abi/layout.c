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
ABI_ASSERT(MOERT_BACKEND_AUTO == 0 && MOERT_BACKEND_CPU == 1 && MOERT_BACKEND_CUDA == 2);
ABI_ASSERT(MOERT_RULE_TOPK == 0 && MOERT_RULE_EXPERT_CACHE == 1);
ABI_ASSERT(MOERT_SUBSTITUTE_BEST == 0 && MOERT_SUBSTITUTE_RANDOM == 1 &&
           MOERT_SUBSTITUTE_NEAREST == 2 && MOERT_SUBSTITUTE_SKIP == 3);
ABI_ASSERT(MOERT_PLACE_LOAD == 0 && MOERT_PLACE_CPU == 1 && MOERT_PLACE_LOW == 2);
ABI_ASSERT(MOERT_LOG_INFO == 0 && MOERT_LOG_WARNING == 1 && MOERT_LOG_ERROR == 2);
ABI_ASSERT(MOERT_ABSENT == 0 && MOERT_ARRIVING == 1);
ABI_ASSERT(MOERT_RESIDENT_LOW == 2 && MOERT_RESIDENT_HIGH == 3);

ABI_SIZE(moert_probe_info, 48);
ABI_FIELD(moert_probe_info, cpus, 8);
ABI_FIELD(moert_probe_info, cuda_usable, 12);
ABI_FIELD(moert_probe_info, memory_bytes, 16);
ABI_FIELD(moert_probe_info, memory_available_bytes, 24);
ABI_FIELD(moert_probe_info, kernels, 32);
ABI_FIELD(moert_probe_info, cuda_status, 40);
ABI_LAST(moert_probe_info, cuda_status, 8);

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
ABI_FIELD(moert_read, reserved0, 68);
ABI_LAST(moert_read, reserved0, 4);

ABI_SIZE(moert_source_callbacks, 48);
ABI_FIELD(moert_source_callbacks, user_data, 8);
ABI_FIELD(moert_source_callbacks, read, 16);
ABI_FIELD(moert_source_callbacks, destroy, 24);
ABI_FIELD(moert_source_callbacks, schemes, 32);
ABI_FIELD(moert_source_callbacks, weights_dtype, 40);
ABI_FIELD(moert_source_callbacks, reserved0, 44);
ABI_LAST(moert_source_callbacks, reserved0, 4);

ABI_SIZE(moert_policy_context, 48);
ABI_FIELD(moert_policy_context, step, 8);
ABI_FIELD(moert_policy_context, now_ns, 16);
ABI_FIELD(moert_policy_context, request_ids, 24);
ABI_FIELD(moert_policy_context, num_request_ids, 32);
ABI_FIELD(moert_policy_context, layer, 40);
ABI_FIELD(moert_policy_context, phase, 44);
ABI_LAST(moert_policy_context, phase, 4);

ABI_SIZE(moert_routing_view, 56);
ABI_FIELD(moert_routing_view, tokens, 8);
ABI_FIELD(moert_routing_view, ids, 16);
ABI_FIELD(moert_routing_view, weights, 24);
ABI_FIELD(moert_routing_view, scores, 32);
ABI_FIELD(moert_routing_view, counts, 40);
ABI_FIELD(moert_routing_view, top_k, 48);
ABI_FIELD(moert_routing_view, num_experts, 52);
ABI_LAST(moert_routing_view, num_experts, 4);

ABI_SIZE(moert_routing_rule, 40);
ABI_FIELD(moert_routing_rule, kind, 8);
ABI_FIELD(moert_routing_rule, alpha, 12);
ABI_FIELD(moert_routing_rule, max_slot_share, 16);
ABI_FIELD(moert_routing_rule, max_mass_share, 20);
ABI_FIELD(moert_routing_rule, second_pass, 24);
ABI_FIELD(moert_routing_rule, own_score_weights, 28);
ABI_FIELD(moert_routing_rule, substitute, 32);
ABI_FIELD(moert_routing_rule, reserved0, 36);
ABI_LAST(moert_routing_rule, reserved0, 4);

ABI_SIZE(moert_prefetch_snapshot, 168);
ABI_FIELD(moert_prefetch_snapshot, context, 8);
ABI_FIELD(moert_prefetch_snapshot, routing, 56);
ABI_FIELD(moert_prefetch_snapshot, predicted_scores, 112);
ABI_FIELD(moert_prefetch_snapshot, resident, 120);
ABI_FIELD(moert_prefetch_snapshot, usable, 128);
ABI_FIELD(moert_prefetch_snapshot, in_flight, 136);
ABI_FIELD(moert_prefetch_snapshot, target_layer, 144);
ABI_FIELD(moert_prefetch_snapshot, target_experts, 148);
ABI_FIELD(moert_prefetch_snapshot, window_ns, 152);
ABI_FIELD(moert_prefetch_snapshot, transfer_ns, 160);
ABI_LAST(moert_prefetch_snapshot, transfer_ns, 8);

ABI_SIZE(moert_candidate, 48);
ABI_FIELD(moert_candidate, last_used, 8);
ABI_FIELD(moert_candidate, inserted, 16);
ABI_FIELD(moert_candidate, uses, 24);
ABI_FIELD(moert_candidate, layer, 32);
ABI_FIELD(moert_candidate, expert, 36);
ABI_FIELD(moert_candidate, unused_prefetch, 40);
ABI_FIELD(moert_candidate, tokens, 44);
ABI_LAST(moert_candidate, tokens, 4);

ABI_SIZE(moert_victim_snapshot, 96);
ABI_FIELD(moert_victim_snapshot, context, 8);
ABI_FIELD(moert_victim_snapshot, candidates, 56);
ABI_FIELD(moert_victim_snapshot, num_candidates, 64);
ABI_FIELD(moert_victim_snapshot, incoming_layer, 72);
ABI_FIELD(moert_victim_snapshot, incoming_expert, 76);
ABI_FIELD(moert_victim_snapshot, for_prefetch, 80);
ABI_FIELD(moert_victim_snapshot, reserved0, 84);
ABI_FIELD(moert_victim_snapshot, dispensable, 88);
ABI_FIELD(moert_victim_snapshot, reserved1, 92);
ABI_LAST(moert_victim_snapshot, reserved1, 4);

ABI_SIZE(moert_precision_snapshot, 96);
ABI_FIELD(moert_precision_snapshot, context, 8);
ABI_FIELD(moert_precision_snapshot, selections, 56);
ABI_FIELD(moert_precision_snapshot, high, 64);
ABI_FIELD(moert_precision_snapshot, high_capacity, 72);
ABI_FIELD(moert_precision_snapshot, total_experts, 80);
ABI_FIELD(moert_precision_snapshot, num_layers, 88);
ABI_FIELD(moert_precision_snapshot, reserved0, 92);
ABI_LAST(moert_precision_snapshot, reserved0, 4);

ABI_SIZE(moert_transfer_snapshot, 96);
ABI_FIELD(moert_transfer_snapshot, context, 8);
ABI_FIELD(moert_transfer_snapshot, layer_tokens, 56);
ABI_FIELD(moert_transfer_snapshot, expert, 64);
ABI_FIELD(moert_transfer_snapshot, tokens, 68);
ABI_FIELD(moert_transfer_snapshot, prefetch, 72);
ABI_FIELD(moert_transfer_snapshot, num_versions, 76);
ABI_FIELD(moert_transfer_snapshot, layer_counts, 80);
ABI_FIELD(moert_transfer_snapshot, num_experts, 88);
ABI_FIELD(moert_transfer_snapshot, reserved0, 92);
ABI_LAST(moert_transfer_snapshot, reserved0, 4);

ABI_SIZE(moert_miss, 48);
ABI_FIELD(moert_miss, bytes, 8);
ABI_FIELD(moert_miss, load_ns, 16);
ABI_FIELD(moert_miss, cpu_ns, 24);
ABI_FIELD(moert_miss, expert, 32);
ABI_FIELD(moert_miss, tokens, 36);
ABI_FIELD(moert_miss, mass, 40);
ABI_FIELD(moert_miss, low_resident, 44);
ABI_LAST(moert_miss, low_resident, 4);

ABI_SIZE(moert_policies, 136);
ABI_FIELD(moert_policies, user_data, 8);
ABI_FIELD(moert_policies, destroy, 16);
ABI_FIELD(moert_policies, observe, 24);
ABI_FIELD(moert_policies, routing_rule, 32);
ABI_FIELD(moert_policies, prefetch_rank, 40);
ABI_FIELD(moert_policies, residency_capacity, 48);
ABI_FIELD(moert_policies, residency_victim, 56);
ABI_FIELD(moert_policies, residency_insert, 64);
ABI_FIELD(moert_policies, residency_evict, 72);
ABI_FIELD(moert_policies, precision_decide, 80);
ABI_FIELD(moert_policies, precision_transfer, 88);
ABI_FIELD(moert_policies, placement, 96);
ABI_FIELD(moert_policies, wants_next_gate, 104);
ABI_FIELD(moert_policies, reserved0, 108);
ABI_FIELD(moert_policies, residency_wants_capacity, 112);
ABI_FIELD(moert_policies, precision_upgrades, 120);
ABI_FIELD(moert_policies, placement_fills, 128);
ABI_LAST(moert_policies, placement_fills, 8);

ABI_SIZE(moert_thread_pool, 40);
ABI_FIELD(moert_thread_pool, user_data, 8);
ABI_FIELD(moert_thread_pool, run, 16);
ABI_FIELD(moert_thread_pool, destroy, 24);
ABI_FIELD(moert_thread_pool, num_threads, 32);
ABI_FIELD(moert_thread_pool, reserved0, 36);
ABI_LAST(moert_thread_pool, reserved0, 4);

ABI_SIZE(moert_allocator, 40);
ABI_FIELD(moert_allocator, user_data, 8);
ABI_FIELD(moert_allocator, allocate, 16);
ABI_FIELD(moert_allocator, deallocate, 24);
ABI_FIELD(moert_allocator, destroy, 32);
ABI_LAST(moert_allocator, destroy, 8);

ABI_SIZE(moert_logger, 32);
ABI_FIELD(moert_logger, user_data, 8);
ABI_FIELD(moert_logger, log, 16);
ABI_FIELD(moert_logger, destroy, 24);
ABI_LAST(moert_logger, destroy, 8);

ABI_SIZE(moert_engine_options, 152);
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
ABI_FIELD(moert_engine_options, backend, 88);
ABI_FIELD(moert_engine_options, device, 92);
ABI_FIELD(moert_engine_options, host_budget_bytes, 96);
ABI_FIELD(moert_engine_options, cpus, 104);
ABI_FIELD(moert_engine_options, trace_path, 112);
ABI_FIELD(moert_engine_options, policies, 120);
ABI_FIELD(moert_engine_options, thread_pool, 128);
ABI_FIELD(moert_engine_options, allocator, 136);
ABI_FIELD(moert_engine_options, logger, 144);
ABI_LAST(moert_engine_options, logger, 8);

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

ABI_SIZE(moert_step_info, 40);
ABI_FIELD(moert_step_info, rows, 8);
ABI_FIELD(moert_step_info, phase, 16);
ABI_FIELD(moert_step_info, reserved0, 20);
ABI_FIELD(moert_step_info, user_data, 24);
ABI_FIELD(moert_step_info, predict_next, 32);
ABI_LAST(moert_step_info, predict_next, 8);

ABI_SIZE(moert_completion, 32);
ABI_FIELD(moert_completion, user_data, 8);
ABI_FIELD(moert_completion, done, 16);
ABI_FIELD(moert_completion, eventfd, 24);
ABI_FIELD(moert_completion, reserved0, 28);
ABI_LAST(moert_completion, reserved0, 4);

ABI_SIZE(moert_matrix, 80);
ABI_FIELD(moert_matrix, scheme, 0);
ABI_FIELD(moert_matrix, rows, 8);
ABI_FIELD(moert_matrix, k, 16);
ABI_FIELD(moert_matrix, padded_rows, 24);
ABI_FIELD(moert_matrix, padded_k, 32);
ABI_FIELD(moert_matrix, group, 40);
ABI_FIELD(moert_matrix, weight_offset, 48);
ABI_FIELD(moert_matrix, weight_bytes, 56);
ABI_FIELD(moert_matrix, scale_offset, 64);
ABI_FIELD(moert_matrix, scale_bytes, 72);
ABI_LAST(moert_matrix, scale_bytes, 8);

ABI_SIZE(moert_expert_view, 272);
ABI_FIELD(moert_expert_view, record, 8);
ABI_FIELD(moert_expert_view, bytes, 16);
ABI_FIELD(moert_expert_view, expert, 24);
ABI_FIELD(moert_expert_view, version, 28);
ABI_FIELD(moert_expert_view, gate, 32);
ABI_FIELD(moert_expert_view, up, 112);
ABI_FIELD(moert_expert_view, down, 192);
ABI_LAST(moert_expert_view, down, 80);

ABI_SIZE(moert_stats, 432);
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
ABI_FIELD(moert_stats, worst_slot_share, 184);
ABI_FIELD(moert_stats, worst_mass_share, 192);
ABI_FIELD(moert_stats, model_lookups, 200);
ABI_FIELD(moert_stats, model_hits, 208);
ABI_FIELD(moert_stats, promotions, 216);
ABI_FIELD(moert_stats, demotions, 224);
ABI_FIELD(moert_stats, deferred, 232);
ABI_FIELD(moert_stats, balance_load_ns, 240);
ABI_FIELD(moert_stats, balance_cpu_ns, 248);
ABI_FIELD(moert_stats, policy_fallbacks, 256);
ABI_FIELD(moert_stats, stall_miss_ns, 264);
ABI_FIELD(moert_stats, stall_queue_ns, 272);
ABI_FIELD(moert_stats, stall_staging_ns, 280);
ABI_FIELD(moert_stats, stall_cpu_ns, 288);
ABI_FIELD(moert_stats, host_syncs, 296);
ABI_FIELD(moert_stats, prefetch_disabled, 304);
ABI_FIELD(moert_stats, graph_captured, 308);
ABI_FIELD(moert_stats, prefetch_active, 312);
ABI_FIELD(moert_stats, prefetch_top_score, 320);
ABI_FIELD(moert_stats, predictions_resident_forward, 328);
ABI_FIELD(moert_stats, predictions_next_gate, 336);
ABI_FIELD(moert_stats, prefetch_cancelled, 344);
ABI_FIELD(moert_stats, prefetch_recalled_in_window, 352);
ABI_FIELD(moert_stats, prefetch_disabled_steps, 360);
ABI_FIELD(moert_stats, slots_low, 368);
ABI_FIELD(moert_stats, mass_low, 376);
ABI_FIELD(moert_stats, low_loads, 384);
ABI_FIELD(moert_stats, upgrades, 392);
ABI_FIELD(moert_stats, fills, 400);
ABI_FIELD(moert_stats, prefetch_trials, 408);
ABI_FIELD(moert_stats, prefetch_switches, 416);
ABI_LAST(moert_stats, prefetch_switches, 8);

int main(void) { return 0; }
