/* Sizes and offsets as they were released: a failure here is a broken promise, not a test to adapt.
 * Only lines for appended fields may be added. Compiled as C99 and as C++. */
#include <stddef.h>

#include "moert.h"

#define ABI_JOIN2(a, b) a##b
#define ABI_JOIN(a, b) ABI_JOIN2(a, b)
#define ABI_ASSERT(condition) typedef char ABI_JOIN(abi_assert_, __LINE__)[(condition) ? 1 : -1]
#define ABI_SIZE(type, size) ABI_ASSERT(sizeof(type) == (size))
#define ABI_FIELD(type, field, offset) ABI_ASSERT(offsetof(type, field) == (offset))
#define ABI_VALUE(name, value) ABI_ASSERT((name) == (value))
/* No tail padding: a field added there would not change the size. */
#define ABI_LAST(type, field, field_size) \
  ABI_ASSERT(offsetof(type, field) + (field_size) == sizeof(type))

ABI_SIZE(moert_code, 4);
ABI_SIZE(moert_dtype, 4);

ABI_SIZE(moert_probe_info, 56);
ABI_FIELD(moert_probe_info, cpus, 8);
ABI_FIELD(moert_probe_info, cuda_usable, 12);
ABI_FIELD(moert_probe_info, memory_bytes, 16);
ABI_FIELD(moert_probe_info, memory_available_bytes, 24);
ABI_FIELD(moert_probe_info, kernels, 32);
ABI_FIELD(moert_probe_info, schemes, 40);
ABI_FIELD(moert_probe_info, cuda_status, 48);
ABI_LAST(moert_probe_info, cuda_status, 8);

ABI_SIZE(moert_tensor, 40);
ABI_FIELD(moert_tensor, data, 0);
ABI_FIELD(moert_tensor, rows, 8);
ABI_FIELD(moert_tensor, cols, 16);
ABI_FIELD(moert_tensor, row_stride, 24);
ABI_FIELD(moert_tensor, dtype, 32);
ABI_FIELD(moert_tensor, place, 36);
ABI_LAST(moert_tensor, place, 4);

ABI_SIZE(moert_layer_spec, 120);
ABI_FIELD(moert_layer_spec, hidden, 8);
ABI_FIELD(moert_layer_spec, intermediate, 16);
ABI_FIELD(moert_layer_spec, shared_intermediate, 24);
ABI_FIELD(moert_layer_spec, num_experts, 32);
ABI_FIELD(moert_layer_spec, model_layer, 36);
ABI_FIELD(moert_layer_spec, activation, 40);
ABI_FIELD(moert_layer_spec, shared_gate, 44);
ABI_FIELD(moert_layer_spec, routing, 48);
ABI_FIELD(moert_layer_spec, top_k, 52);
ABI_FIELD(moert_layer_spec, renormalize, 56);
ABI_FIELD(moert_layer_spec, selection_bias, 60);
ABI_FIELD(moert_layer_spec, num_groups, 64);
ABI_FIELD(moert_layer_spec, top_groups, 68);
ABI_FIELD(moert_layer_spec, scaling, 72);
ABI_FIELD(moert_layer_spec, sparsemixer_eps, 76);
ABI_FIELD(moert_layer_spec, logit_bias, 80);
ABI_FIELD(moert_layer_spec, weight_input, 84);
ABI_FIELD(moert_layer_spec, expert_scales, 88);
ABI_FIELD(moert_layer_spec, hash_vocab, 92);
ABI_FIELD(moert_layer_spec, ungated, 96);
ABI_FIELD(moert_layer_spec, expert_bias, 100);
ABI_FIELD(moert_layer_spec, activation_alpha, 104);
ABI_FIELD(moert_layer_spec, activation_limit, 108);
ABI_FIELD(moert_layer_spec, up_offset, 112);
ABI_FIELD(moert_layer_spec, reserved, 116);
ABI_LAST(moert_layer_spec, reserved, 4);

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

ABI_SIZE(moert_open_options, 48);
ABI_FIELD(moert_open_options, cache_dir, 8);
ABI_FIELD(moert_open_options, user_data, 16);
ABI_FIELD(moert_open_options, log, 24);
ABI_FIELD(moert_open_options, progress, 32);
ABI_FIELD(moert_open_options, widen, 40);
ABI_FIELD(moert_open_options, mode, 44);
ABI_LAST(moert_open_options, mode, 4);

ABI_SIZE(moert_read, 72);
ABI_FIELD(moert_read, layer, 8);
ABI_FIELD(moert_read, expert, 12);
ABI_FIELD(moert_read, part, 16);
ABI_FIELD(moert_read, version, 20);
ABI_FIELD(moert_read, first_row, 24);
ABI_FIELD(moert_read, dst, 32);
ABI_LAST(moert_read, dst, 40);

ABI_SIZE(moert_source_callbacks, 56);
ABI_FIELD(moert_source_callbacks, weights_dtype, 8);
ABI_FIELD(moert_source_callbacks, schemes, 16);
ABI_FIELD(moert_source_callbacks, user_data, 24);
ABI_FIELD(moert_source_callbacks, read, 32);
ABI_FIELD(moert_source_callbacks, pinned_record, 40);
ABI_FIELD(moert_source_callbacks, destroy, 48);
ABI_LAST(moert_source_callbacks, destroy, 8);

ABI_SIZE(moert_record_info, 296);
ABI_FIELD(moert_record_info, version, 8);
ABI_FIELD(moert_record_info, bytes, 16);
ABI_FIELD(moert_record_info, hadamard, 24);
ABI_FIELD(moert_record_info, gate, 32);
ABI_FIELD(moert_record_info, up, 112);
ABI_FIELD(moert_record_info, down, 192);
ABI_FIELD(moert_record_info, gate_bias_offset, 272);
ABI_FIELD(moert_record_info, up_bias_offset, 280);
ABI_FIELD(moert_record_info, down_bias_offset, 288);
ABI_LAST(moert_record_info, down_bias_offset, 8);

ABI_SIZE(moert_thread_pool, 40);
ABI_FIELD(moert_thread_pool, num_threads, 8);
ABI_FIELD(moert_thread_pool, user_data, 16);
ABI_FIELD(moert_thread_pool, run, 24);
ABI_FIELD(moert_thread_pool, destroy, 32);
ABI_LAST(moert_thread_pool, destroy, 8);

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

ABI_SIZE(moert_engine_options, 208);
ABI_FIELD(moert_engine_options, strategy, 8);
ABI_FIELD(moert_engine_options, policies, 16);
ABI_FIELD(moert_engine_options, budget_bytes, 24);
ABI_FIELD(moert_engine_options, budget_fraction, 32);
ABI_FIELD(moert_engine_options, host_budget_bytes, 40);
ABI_FIELD(moert_engine_options, max_tokens_per_forward, 48);
ABI_FIELD(moert_engine_options, allocator, 56);
ABI_FIELD(moert_engine_options, backend, 64);
ABI_FIELD(moert_engine_options, device, 68);
ABI_FIELD(moert_engine_options, numerics, 72);
ABI_FIELD(moert_engine_options, io_threads, 76);
ABI_FIELD(moert_engine_options, threads, 80);
ABI_FIELD(moert_engine_options, clock, 84);
ABI_FIELD(moert_engine_options, cpus, 88);
ABI_FIELD(moert_engine_options, kernels, 96);
ABI_FIELD(moert_engine_options, profile, 104);
ABI_FIELD(moert_engine_options, link_gbps, 112);
ABI_FIELD(moert_engine_options, thread_pool, 120);
ABI_FIELD(moert_engine_options, logger, 128);
ABI_FIELD(moert_engine_options, trace_sink, 136);
ABI_FIELD(moert_engine_options, trace_path, 144);
ABI_FIELD(moert_engine_options, shard, 152);
ABI_FIELD(moert_engine_options, open_user_data, 160);
ABI_FIELD(moert_engine_options, open_progress, 168);
ABI_FIELD(moert_engine_options, numa_node, 176);
ABI_FIELD(moert_engine_options, timeline_path, 184);
ABI_FIELD(moert_engine_options, trace_replace, 192);
ABI_FIELD(moert_engine_options, promise, 200);
ABI_LAST(moert_engine_options, promise, 8);

ABI_SIZE(moert_shard, 64);
ABI_FIELD(moert_shard, first_expert, 8);
ABI_FIELD(moert_shard, num_experts, 16);
ABI_FIELD(moert_shard, expert_list, 24);
ABI_FIELD(moert_shard, expert_list_size, 32);
ABI_FIELD(moert_shard, first_channel, 40);
ABI_FIELD(moert_shard, num_channels, 48);
ABI_FIELD(moert_shard, shared_experts, 56);
ABI_LAST(moert_shard, shared_experts, 8);

ABI_SIZE(moert_graph_needs, 32);
ABI_FIELD(moert_graph_needs, capturable, 8);
ABI_FIELD(moert_graph_needs, eager_every, 12);
ABI_FIELD(moert_graph_needs, obstacle, 16);
ABI_FIELD(moert_graph_needs, max_rows, 24);
ABI_LAST(moert_graph_needs, max_rows, 8);

ABI_SIZE(moert_memory, 128);
ABI_FIELD(moert_memory, budget_bytes, 8);
ABI_FIELD(moert_memory, minimum_bytes, 16);
ABI_FIELD(moert_memory, constant_bytes, 24);
ABI_FIELD(moert_memory, table_bytes, 32);
ABI_FIELD(moert_memory, workspace_bytes, 40);
ABI_FIELD(moert_memory, block_bytes, 48);
ABI_FIELD(moert_memory, slots, 56);
ABI_FIELD(moert_memory, low_block_bytes, 64);
ABI_FIELD(moert_memory, low_slots, 72);
ABI_FIELD(moert_memory, spare_slots, 80);
ABI_FIELD(moert_memory, own_bytes, 88);
ABI_FIELD(moert_memory, total_experts, 96);
ABI_FIELD(moert_memory, all_bytes, 104);
ABI_FIELD(moert_memory, policy_bytes, 112);
ABI_FIELD(moert_memory, pinned_bytes, 120);
ABI_LAST(moert_memory, pinned_bytes, 8);

ABI_SIZE(moert_step_options, 64);
ABI_FIELD(moert_step_options, rows, 8);
ABI_FIELD(moert_step_options, phase, 16);
ABI_FIELD(moert_step_options, request_ids, 24);
ABI_FIELD(moert_step_options, stream, 32);
ABI_FIELD(moert_step_options, user_data, 40);
ABI_FIELD(moert_step_options, predict_next, 48);
ABI_FIELD(moert_step_options, token_ids, 56);
ABI_LAST(moert_step_options, token_ids, 8);

ABI_SIZE(moert_opaque_part, 72);
ABI_FIELD(moert_opaque_part, bytes, 8);
ABI_FIELD(moert_opaque_part, alignment, 16);
ABI_FIELD(moert_opaque_part, stride_multiple, 24);
ABI_FIELD(moert_opaque_part, memory, 32);
ABI_FIELD(moert_opaque_part, offset, 40);
ABI_FIELD(moert_opaque_part, stride, 48);
ABI_FIELD(moert_opaque_part, layer, 56);
ABI_FIELD(moert_opaque_part, file, 60);
ABI_FIELD(moert_opaque_part, zeros, 64);
ABI_LAST(moert_opaque_part, zeros, 8);

ABI_SIZE(moert_cpu_expert, 80);
ABI_FIELD(moert_cpu_expert, part, 0);
ABI_FIELD(moert_cpu_expert, pairs, 64);
ABI_FIELD(moert_cpu_expert, expert, 72);
ABI_LAST(moert_cpu_expert, expert, 8);

ABI_SIZE(moert_cpu_job, 112);
ABI_FIELD(moert_cpu_job, layer, 8);
ABI_FIELD(moert_cpu_job, hidden, 16);
ABI_FIELD(moert_cpu_job, rows, 24);
ABI_FIELD(moert_cpu_job, x, 32);
ABI_FIELD(moert_cpu_job, num_experts, 40);
ABI_FIELD(moert_cpu_job, experts, 48);
ABI_FIELD(moert_cpu_job, pairs, 56);
ABI_FIELD(moert_cpu_job, row_of, 64);
ABI_FIELD(moert_cpu_job, weights, 72);
ABI_FIELD(moert_cpu_job, out, 80);
ABI_FIELD(moert_cpu_job, run, 88);
ABI_FIELD(moert_cpu_job, pool, 96);
ABI_FIELD(moert_cpu_job, threads, 104);
ABI_LAST(moert_cpu_job, threads, 8);

ABI_SIZE(moert_opaque_options, 72);
ABI_FIELD(moert_opaque_options, format, 8);
ABI_FIELD(moert_opaque_options, files, 16);
ABI_FIELD(moert_opaque_options, num_files, 24);
ABI_FIELD(moert_opaque_options, user_data, 32);
ABI_FIELD(moert_opaque_options, read, 40);
ABI_FIELD(moert_opaque_options, gates, 48);
ABI_FIELD(moert_opaque_options, destroy, 56);
ABI_FIELD(moert_opaque_options, product, 64);
ABI_LAST(moert_opaque_options, product, 8);

ABI_SIZE(moert_fetch, 256);
ABI_FIELD(moert_fetch, ids, 8);
ABI_FIELD(moert_fetch, weights, 48);
ABI_FIELD(moert_fetch, next_scores, 88);
ABI_FIELD(moert_fetch, hidden, 128);
ABI_FIELD(moert_fetch, slot_ids, 168);
ABI_FIELD(moert_fetch, cpu_rows, 208);
ABI_FIELD(moert_fetch, any_slot, 248);
ABI_LAST(moert_fetch, any_slot, 8);

ABI_SIZE(moert_slots, 232);
ABI_FIELD(moert_slots, base, 8);
ABI_FIELD(moert_slots, stride, 72);
ABI_FIELD(moert_slots, bytes, 136);
ABI_FIELD(moert_slots, slot_of_expert, 200);
ABI_FIELD(moert_slots, slots, 208);
ABI_FIELD(moert_slots, parts, 216);
ABI_FIELD(moert_slots, device_slot_of_expert, 224);
ABI_LAST(moert_slots, device_slot_of_expert, 8);

ABI_SIZE(moert_routing, 224);
ABI_FIELD(moert_routing, ids, 8);
ABI_FIELD(moert_routing, weights, 48);
ABI_FIELD(moert_routing, scores, 88);
ABI_FIELD(moert_routing, next_scores, 128);
ABI_FIELD(moert_routing, used_ids, 168);
ABI_FIELD(moert_routing, times, 208);
ABI_FIELD(moert_routing, idle_before_ns, 216);
ABI_LAST(moert_routing, idle_before_ns, 8);

ABI_SIZE(moert_completion, 32);
ABI_FIELD(moert_completion, eventfd, 8);
ABI_FIELD(moert_completion, user_data, 16);
ABI_FIELD(moert_completion, done, 24);
ABI_LAST(moert_completion, done, 8);

ABI_SIZE(moert_expert_view, 272);
ABI_FIELD(moert_expert_view, record, 8);
ABI_FIELD(moert_expert_view, bytes, 16);
ABI_FIELD(moert_expert_view, expert, 24);
ABI_FIELD(moert_expert_view, version, 28);
ABI_FIELD(moert_expert_view, gate, 32);
ABI_FIELD(moert_expert_view, up, 112);
ABI_FIELD(moert_expert_view, down, 192);
ABI_LAST(moert_expert_view, down, 80);

ABI_SIZE(moert_stats, 128);
ABI_FIELD(moert_stats, budget_bytes, 8);
ABI_FIELD(moert_stats, peak_bytes, 16);
ABI_FIELD(moert_stats, lookups, 24);
ABI_FIELD(moert_stats, hits_resident, 32);
ABI_FIELD(moert_stats, hits_prefetched, 40);
ABI_FIELD(moert_stats, late, 48);
ABI_FIELD(moert_stats, loads, 56);
ABI_FIELD(moert_stats, prefetches, 64);
ABI_FIELD(moert_stats, bytes_loaded, 72);
ABI_FIELD(moert_stats, evictions, 80);
ABI_FIELD(moert_stats, stalled_ns, 88);
ABI_FIELD(moert_stats, substituted, 96);
ABI_FIELD(moert_stats, low_answers, 104);
ABI_FIELD(moert_stats, policy_fallbacks, 112);
ABI_FIELD(moert_stats, cpu_computed, 120);
ABI_LAST(moert_stats, cpu_computed, 8);

ABI_SIZE(moert_call_times, 56);
ABI_FIELD(moert_call_times, step_begin_ns, 8);
ABI_FIELD(moert_call_times, begin_ns, 16);
ABI_FIELD(moert_call_times, end_ns, 24);
ABI_FIELD(moert_call_times, route_ns, 32);
ABI_FIELD(moert_call_times, multiply_ns, 40);
ABI_FIELD(moert_call_times, stalled_ns, 48);
ABI_LAST(moert_call_times, stalled_ns, 8);

ABI_SIZE(moert_trace_call, 96);
ABI_FIELD(moert_trace_call, step, 8);
ABI_FIELD(moert_trace_call, layer, 16);
ABI_FIELD(moert_trace_call, phase, 20);
ABI_FIELD(moert_trace_call, tokens, 24);
ABI_FIELD(moert_trace_call, top_k, 32);
ABI_FIELD(moert_trace_call, num_experts, 36);
ABI_FIELD(moert_trace_call, request_ids, 40);
ABI_FIELD(moert_trace_call, ids, 48);
ABI_FIELD(moert_trace_call, weights, 56);
ABI_FIELD(moert_trace_call, scores, 64);
ABI_FIELD(moert_trace_call, next_scores, 72);
ABI_FIELD(moert_trace_call, next_experts, 80);
ABI_FIELD(moert_trace_call, times, 88);
ABI_LAST(moert_trace_call, times, 8);

ABI_SIZE(moert_trace_span, 64);
ABI_FIELD(moert_trace_span, name, 8);
ABI_FIELD(moert_trace_span, track, 16);
ABI_FIELD(moert_trace_span, begin_ns, 24);
ABI_FIELD(moert_trace_span, end_ns, 32);
ABI_FIELD(moert_trace_span, step, 40);
ABI_FIELD(moert_trace_span, layer, 48);
ABI_FIELD(moert_trace_span, expert, 52);
ABI_FIELD(moert_trace_span, bytes, 56);
ABI_LAST(moert_trace_span, bytes, 8);

ABI_SIZE(moert_trace_sink, 48);
ABI_FIELD(moert_trace_sink, wants_next_scores, 8);
ABI_FIELD(moert_trace_sink, user_data, 16);
ABI_FIELD(moert_trace_sink, on_call, 24);
ABI_FIELD(moert_trace_sink, on_span, 32);
ABI_FIELD(moert_trace_sink, destroy, 40);
ABI_LAST(moert_trace_sink, destroy, 8);

ABI_SIZE(moert_policy_context, 48);
ABI_FIELD(moert_policy_context, step, 8);
ABI_FIELD(moert_policy_context, now_ns, 16);
ABI_FIELD(moert_policy_context, layer, 24);
ABI_FIELD(moert_policy_context, phase, 28);
ABI_FIELD(moert_policy_context, request_ids, 32);
ABI_FIELD(moert_policy_context, num_request_ids, 40);
ABI_LAST(moert_policy_context, num_request_ids, 8);

ABI_SIZE(moert_routing_view, 56);
ABI_FIELD(moert_routing_view, tokens, 8);
ABI_FIELD(moert_routing_view, top_k, 16);
ABI_FIELD(moert_routing_view, num_experts, 20);
ABI_FIELD(moert_routing_view, ids, 24);
ABI_FIELD(moert_routing_view, weights, 32);
ABI_FIELD(moert_routing_view, scores, 40);
ABI_FIELD(moert_routing_view, counts, 48);
ABI_LAST(moert_routing_view, counts, 8);

ABI_SIZE(moert_routing_rule, 32);
ABI_FIELD(moert_routing_rule, kind, 8);
ABI_FIELD(moert_routing_rule, alpha, 12);
ABI_FIELD(moert_routing_rule, max_slot_share, 16);
ABI_FIELD(moert_routing_rule, max_mass_share, 20);
ABI_FIELD(moert_routing_rule, second_pass, 24);
ABI_FIELD(moert_routing_rule, own_score_weights, 28);
ABI_LAST(moert_routing_rule, own_score_weights, 4);

ABI_SIZE(moert_prefetch_snapshot, 88);
ABI_FIELD(moert_prefetch_snapshot, context, 8);
ABI_FIELD(moert_prefetch_snapshot, routing, 16);
ABI_FIELD(moert_prefetch_snapshot, target_layer, 24);
ABI_FIELD(moert_prefetch_snapshot, target_experts, 28);
ABI_FIELD(moert_prefetch_snapshot, predicted_scores, 32);
ABI_FIELD(moert_prefetch_snapshot, resident, 40);
ABI_FIELD(moert_prefetch_snapshot, usable, 48);
ABI_FIELD(moert_prefetch_snapshot, in_flight, 56);
ABI_FIELD(moert_prefetch_snapshot, target_capacity, 64);
ABI_FIELD(moert_prefetch_snapshot, window_ns, 72);
ABI_FIELD(moert_prefetch_snapshot, transfer_ns, 80);
ABI_LAST(moert_prefetch_snapshot, transfer_ns, 8);

ABI_SIZE(moert_prediction, 12);
ABI_FIELD(moert_prediction, expert, 0);
ABI_FIELD(moert_prediction, score, 4);
ABI_FIELD(moert_prediction, tokens, 8);
ABI_LAST(moert_prediction, tokens, 4);

ABI_SIZE(moert_prefetch_outlook, 16);
ABI_FIELD(moert_prefetch_outlook, recall, 0);
ABI_FIELD(moert_prefetch_outlook, transfers, 8);
ABI_LAST(moert_prefetch_outlook, transfers, 8);

ABI_SIZE(moert_capacity_snapshot, 32);
ABI_FIELD(moert_capacity_snapshot, slots, 8);
ABI_FIELD(moert_capacity_snapshot, num_layers, 16);
ABI_FIELD(moert_capacity_snapshot, prefetch, 24);
ABI_LAST(moert_capacity_snapshot, prefetch, 8);

ABI_SIZE(moert_candidate, 40);
ABI_FIELD(moert_candidate, layer, 0);
ABI_FIELD(moert_candidate, expert, 4);
ABI_FIELD(moert_candidate, last_used, 8);
ABI_FIELD(moert_candidate, inserted, 16);
ABI_FIELD(moert_candidate, uses, 24);
ABI_FIELD(moert_candidate, tokens, 32);
ABI_FIELD(moert_candidate, unused_prefetch, 36);
ABI_LAST(moert_candidate, unused_prefetch, 4);

ABI_SIZE(moert_victim_snapshot, 48);
ABI_FIELD(moert_victim_snapshot, context, 8);
ABI_FIELD(moert_victim_snapshot, candidates, 16);
ABI_FIELD(moert_victim_snapshot, num_candidates, 24);
ABI_FIELD(moert_victim_snapshot, incoming_layer, 32);
ABI_FIELD(moert_victim_snapshot, incoming_expert, 36);
ABI_FIELD(moert_victim_snapshot, for_prefetch, 40);
ABI_FIELD(moert_victim_snapshot, dispensable, 44);
ABI_LAST(moert_victim_snapshot, dispensable, 4);

ABI_SIZE(moert_precision_snapshot, 56);
ABI_FIELD(moert_precision_snapshot, context, 8);
ABI_FIELD(moert_precision_snapshot, selections, 16);
ABI_FIELD(moert_precision_snapshot, high, 24);
ABI_FIELD(moert_precision_snapshot, total_experts, 32);
ABI_FIELD(moert_precision_snapshot, high_capacity, 40);
ABI_FIELD(moert_precision_snapshot, num_layers, 48);
ABI_LAST(moert_precision_snapshot, num_layers, 8);

ABI_SIZE(moert_transfer_snapshot, 56);
ABI_FIELD(moert_transfer_snapshot, context, 8);
ABI_FIELD(moert_transfer_snapshot, expert, 16);
ABI_FIELD(moert_transfer_snapshot, prefetch, 20);
ABI_FIELD(moert_transfer_snapshot, tokens, 24);
ABI_FIELD(moert_transfer_snapshot, num_versions, 28);
ABI_FIELD(moert_transfer_snapshot, layer_tokens, 32);
ABI_FIELD(moert_transfer_snapshot, layer_counts, 40);
ABI_FIELD(moert_transfer_snapshot, num_experts, 48);
ABI_LAST(moert_transfer_snapshot, num_experts, 8);

ABI_SIZE(moert_miss, 40);
ABI_FIELD(moert_miss, expert, 0);
ABI_FIELD(moert_miss, tokens, 4);
ABI_FIELD(moert_miss, mass, 8);
ABI_FIELD(moert_miss, arriving, 12);
ABI_FIELD(moert_miss, bytes, 16);
ABI_FIELD(moert_miss, load_ns, 24);
ABI_FIELD(moert_miss, cpu_ns, 32);
ABI_LAST(moert_miss, cpu_ns, 8);

ABI_SIZE(moert_placement_snapshot, 40);
ABI_FIELD(moert_placement_snapshot, context, 8);
ABI_FIELD(moert_placement_snapshot, misses, 16);
ABI_FIELD(moert_placement_snapshot, num_misses, 24);
ABI_FIELD(moert_placement_snapshot, link_busy_ns, 32);
ABI_LAST(moert_placement_snapshot, link_busy_ns, 8);

ABI_SIZE(moert_prefetch_rule, 24);
ABI_FIELD(moert_prefetch_rule, kind, 8);
ABI_FIELD(moert_prefetch_rule, wrap, 12);
ABI_FIELD(moert_prefetch_rule, alpha, 16);
ABI_FIELD(moert_prefetch_rule, resident_forward, 20);
ABI_LAST(moert_prefetch_rule, resident_forward, 4);

ABI_SIZE(moert_residency_rule, 32);
ABI_FIELD(moert_residency_rule, kind, 8);
ABI_FIELD(moert_residency_rule, window, 12);
ABI_FIELD(moert_residency_rule, shared_slots, 16);
ABI_FIELD(moert_residency_rule, capacity, 20);
ABI_FIELD(moert_residency_rule, shallow, 24);
ABI_FIELD(moert_residency_rule, transient, 28);
ABI_LAST(moert_residency_rule, transient, 4);

ABI_SIZE(moert_placement_rule, 40);
ABI_FIELD(moert_placement_rule, balance, 8);
ABI_FIELD(moert_placement_rule, backfills, 12);
ABI_FIELD(moert_placement_rule, max_low_share, 16);
ABI_FIELD(moert_placement_rule, low_patience, 24);
ABI_FIELD(moert_placement_rule, spares_low, 32);
ABI_FIELD(moert_placement_rule, reserved, 36);
ABI_LAST(moert_placement_rule, reserved, 4);

ABI_SIZE(moert_policies, 200);
ABI_FIELD(moert_policies, user_data, 8);
ABI_FIELD(moert_policies, destroy, 16);
ABI_FIELD(moert_policies, observe, 24);
ABI_FIELD(moert_policies, routing_check, 32);
ABI_FIELD(moert_policies, routing_rule, 40);
ABI_FIELD(moert_policies, prefetch_wants_next_gate, 48);
ABI_FIELD(moert_policies, prefetch_wants_resident_forward, 52);
ABI_FIELD(moert_policies, prefetch_rank, 56);
ABI_FIELD(moert_policies, residency_capacity, 64);
ABI_FIELD(moert_policies, residency_wants_capacity, 72);
ABI_FIELD(moert_policies, residency_victim, 80);
ABI_FIELD(moert_policies, residency_insert, 88);
ABI_FIELD(moert_policies, residency_evict, 96);
ABI_FIELD(moert_policies, precision_initial, 104);
ABI_FIELD(moert_policies, precision_decide, 112);
ABI_FIELD(moert_policies, precision_worth, 120);
ABI_FIELD(moert_policies, precision_transfer, 128);
ABI_FIELD(moert_policies, precision_upgrades, 136);
ABI_FIELD(moert_policies, placement, 144);
ABI_FIELD(moert_policies, placement_backfills, 152);
ABI_FIELD(moert_policies, prefetch_rule, 160);
ABI_FIELD(moert_policies, residency_rule, 168);
ABI_FIELD(moert_policies, placement_rule, 176);
ABI_FIELD(moert_policies, routing_by_phase, 184);
ABI_FIELD(moert_policies, reserved, 188);
ABI_FIELD(moert_policies, state_bytes, 192);
ABI_LAST(moert_policies, state_bytes, 8);

ABI_SIZE(moert_strategy_info, 32);
ABI_FIELD(moert_strategy_info, name, 8);
ABI_FIELD(moert_strategy_info, summary, 16);
ABI_FIELD(moert_strategy_info, keys, 24);
ABI_LAST(moert_strategy_info, keys, 8);

ABI_SIZE(moert_strategy, 24);
ABI_FIELD(moert_strategy, base, 8);
ABI_FIELD(moert_strategy, policies, 16);
ABI_LAST(moert_strategy, policies, 8);

ABI_VALUE(MOERT_OK, 0);
ABI_VALUE(MOERT_CANCELLED, -1);
ABI_VALUE(MOERT_UNKNOWN, -2);
ABI_VALUE(MOERT_INVALID_ARGUMENT, -3);
ABI_VALUE(MOERT_DEADLINE_EXCEEDED, -4);
ABI_VALUE(MOERT_NOT_FOUND, -5);
ABI_VALUE(MOERT_ALREADY_EXISTS, -6);
ABI_VALUE(MOERT_PERMISSION_DENIED, -7);
ABI_VALUE(MOERT_RESOURCE_EXHAUSTED, -8);
ABI_VALUE(MOERT_FAILED_PRECONDITION, -9);
ABI_VALUE(MOERT_ABORTED, -10);
ABI_VALUE(MOERT_OUT_OF_RANGE, -11);
ABI_VALUE(MOERT_UNIMPLEMENTED, -12);
ABI_VALUE(MOERT_INTERNAL, -13);
ABI_VALUE(MOERT_UNAVAILABLE, -14);
ABI_VALUE(MOERT_DATA_LOSS, -15);
ABI_VALUE(MOERT_UNAUTHENTICATED, -16);

ABI_VALUE(MOERT_DTYPE_INVALID, -1);
ABI_VALUE(MOERT_F32, 0);
ABI_VALUE(MOERT_BF16, 1);
ABI_VALUE(MOERT_F16, 2);
ABI_VALUE(MOERT_U8, 4);
ABI_VALUE(MOERT_I32, 5);

ABI_VALUE(MOERT_PLACE_INVALID, -1);
ABI_VALUE(MOERT_HOST, 0);
ABI_VALUE(MOERT_DEVICE, 1);

ABI_VALUE(MOERT_ROUTING_INVALID, -1);
ABI_VALUE(MOERT_ROUTING_SOFTMAX_TOPK, 0);
ABI_VALUE(MOERT_ROUTING_TOPK_SOFTMAX, 1);
ABI_VALUE(MOERT_ROUTING_SIGMOID_GROUPED, 2);
ABI_VALUE(MOERT_ROUTING_SPARSEMIXER, 3);
ABI_VALUE(MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED, 4);
ABI_VALUE(MOERT_ROUTING_TOPK_SIGMOID, 5);
ABI_VALUE(MOERT_ROUTING_EXTERNAL, 6);
ABI_VALUE(MOERT_MAX_PARTS, 8);

ABI_VALUE(MOERT_ACTIVATION_INVALID, -1);
ABI_VALUE(MOERT_SILU, 0);
ABI_VALUE(MOERT_GELU, 1);
ABI_VALUE(MOERT_GELU_TANH, 2);
ABI_VALUE(MOERT_RELU2, 3);

ABI_VALUE(MOERT_PART_INVALID, -1);
ABI_VALUE(MOERT_PART_GATE_PROJ, 0);
ABI_VALUE(MOERT_PART_UP_PROJ, 1);
ABI_VALUE(MOERT_PART_DOWN_PROJ, 2);
ABI_VALUE(MOERT_PART_ROUTER, 3);
ABI_VALUE(MOERT_PART_SELECTION_BIAS, 4);
ABI_VALUE(MOERT_PART_SHARED_GATE, 5);
ABI_VALUE(MOERT_PART_RECORD, 6);
ABI_VALUE(MOERT_PART_LOGIT_BIAS, 7);
ABI_VALUE(MOERT_PART_EXPERT_SCALES, 8);
ABI_VALUE(MOERT_PART_HASH_EXPERTS, 9);
ABI_VALUE(MOERT_PART_GATE_BIAS, 10);
ABI_VALUE(MOERT_PART_UP_BIAS, 11);
ABI_VALUE(MOERT_PART_DOWN_BIAS, 12);

ABI_VALUE(MOERT_SHARED_EXPERT, -1);

ABI_VALUE(MOERT_LOG_INVALID, -1);
ABI_VALUE(MOERT_LOG_INFO, 0);
ABI_VALUE(MOERT_LOG_WARNING, 1);
ABI_VALUE(MOERT_LOG_ERROR, 2);

ABI_VALUE(MOERT_BACKEND_INVALID, -1);
ABI_VALUE(MOERT_BACKEND_AUTO, 0);
ABI_VALUE(MOERT_BACKEND_CPU, 1);
ABI_VALUE(MOERT_BACKEND_CUDA, 2);

ABI_VALUE(MOERT_NUMERICS_INVALID, -1);
ABI_VALUE(MOERT_NUMERICS_BF16, 0);
ABI_VALUE(MOERT_NUMERICS_F32, 1);
ABI_VALUE(MOERT_NUMERICS_INT8, 2);
ABI_VALUE(MOERT_NUMERICS_FP8, 3);

ABI_VALUE(MOERT_CLOCK_INVALID, -1);
ABI_VALUE(MOERT_CLOCK_WALL, 0);
ABI_VALUE(MOERT_CLOCK_VIRTUAL, 1);
ABI_VALUE(MOERT_CLOCK_SIMULATION, 2);

ABI_VALUE(MOERT_ABSENT, 0);
ABI_VALUE(MOERT_ARRIVING, 1);
ABI_VALUE(MOERT_RESIDENT_LOW, 2);
ABI_VALUE(MOERT_RESIDENT_HIGH, 3);

ABI_VALUE(MOERT_TRACK_INVALID, -1);
ABI_VALUE(MOERT_TRACK_STEPS, 0);
ABI_VALUE(MOERT_TRACK_LAYERS, 1);
ABI_VALUE(MOERT_TRACK_STALLS, 2);
ABI_VALUE(MOERT_TRACK_LINK, 3);

ABI_VALUE(MOERT_PHASE_INVALID, -1);
ABI_VALUE(MOERT_PREFILL, 0);
ABI_VALUE(MOERT_DECODE, 1);

ABI_VALUE(MOERT_RULE_INVALID, -1);
ABI_VALUE(MOERT_RULE_TOPK, 0);
ABI_VALUE(MOERT_RULE_EXPERT_CACHE, 1);

ABI_VALUE(MOERT_PLACEMENT_INVALID, -1);
ABI_VALUE(MOERT_LOAD_MISS, 0);
ABI_VALUE(MOERT_COMPUTE_ON_CPU, 1);

int main(void) { return 0; }
