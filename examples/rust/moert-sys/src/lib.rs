//! Bindings of moert.h, made by `examples/rust/moert-sys/generate.sh`; checked in so that no build
//! needs bindgen.
#![allow(non_camel_case_types, non_upper_case_globals, clippy::all)]


pub const MOERT_VERSION_MAJOR: u32 = 0;
pub const MOERT_VERSION_MINOR: u32 = 1;
pub const MOERT_VERSION_PATCH: u32 = 0;
pub type __uint8_t = ::std::os::raw::c_uchar;
pub type __int32_t = ::std::os::raw::c_int;
pub type __int64_t = ::std::os::raw::c_long;
pub type __uint64_t = ::std::os::raw::c_ulong;
pub type moert_code = i32;
pub const MOERT_OK: moert_code_values = 0;
pub const MOERT_CANCELLED: moert_code_values = -1;
pub const MOERT_UNKNOWN: moert_code_values = -2;
pub const MOERT_INVALID_ARGUMENT: moert_code_values = -3;
pub const MOERT_DEADLINE_EXCEEDED: moert_code_values = -4;
pub const MOERT_NOT_FOUND: moert_code_values = -5;
pub const MOERT_ALREADY_EXISTS: moert_code_values = -6;
pub const MOERT_PERMISSION_DENIED: moert_code_values = -7;
pub const MOERT_RESOURCE_EXHAUSTED: moert_code_values = -8;
pub const MOERT_FAILED_PRECONDITION: moert_code_values = -9;
pub const MOERT_ABORTED: moert_code_values = -10;
pub const MOERT_OUT_OF_RANGE: moert_code_values = -11;
pub const MOERT_UNIMPLEMENTED: moert_code_values = -12;
pub const MOERT_INTERNAL: moert_code_values = -13;
pub const MOERT_UNAVAILABLE: moert_code_values = -14;
pub const MOERT_DATA_LOSS: moert_code_values = -15;
pub const MOERT_UNAUTHENTICATED: moert_code_values = -16;
pub type moert_code_values = ::std::os::raw::c_int;
pub type moert_dtype = i32;
pub const MOERT_DTYPE_INVALID: moert_dtype_values = -1;
pub const MOERT_F32: moert_dtype_values = 0;
pub const MOERT_BF16: moert_dtype_values = 1;
pub const MOERT_F16: moert_dtype_values = 2;
pub const MOERT_U8: moert_dtype_values = 4;
pub type moert_dtype_values = ::std::os::raw::c_int;
pub type moert_phase = i32;
pub const MOERT_PHASE_INVALID: moert_phase_values = -1;
pub const MOERT_PREFILL: moert_phase_values = 0;
pub const MOERT_DECODE: moert_phase_values = 1;
pub type moert_phase_values = ::std::os::raw::c_int;
pub type moert_routing = i32;
pub const MOERT_ROUTING_INVALID: moert_routing_values = -1;
pub const MOERT_ROUTING_SOFTMAX_TOPK: moert_routing_values = 0;
pub const MOERT_ROUTING_TOPK_SOFTMAX: moert_routing_values = 1;
pub const MOERT_ROUTING_SIGMOID_GROUPED: moert_routing_values = 2;
pub const MOERT_ROUTING_SPARSEMIXER: moert_routing_values = 3;
pub type moert_routing_values = ::std::os::raw::c_int;
pub type moert_activation = i32;
pub const MOERT_ACTIVATION_INVALID: moert_activation_values = -1;
pub const MOERT_SILU: moert_activation_values = 0;
pub const MOERT_GELU: moert_activation_values = 1;
pub const MOERT_GELU_TANH: moert_activation_values = 2;
pub type moert_activation_values = ::std::os::raw::c_int;
pub type moert_numerics = i32;
pub const MOERT_NUMERICS_INVALID: moert_numerics_values = -1;
pub const MOERT_NUMERICS_BF16: moert_numerics_values = 0;
pub const MOERT_NUMERICS_F32: moert_numerics_values = 1;
pub const MOERT_NUMERICS_INT8: moert_numerics_values = 2;
pub type moert_numerics_values = ::std::os::raw::c_int;
pub type moert_backend = i32;
pub const MOERT_BACKEND_INVALID: moert_backend_values = -1;
pub const MOERT_BACKEND_AUTO: moert_backend_values = 0;
pub const MOERT_BACKEND_CPU: moert_backend_values = 1;
pub const MOERT_BACKEND_CUDA: moert_backend_values = 2;
pub type moert_backend_values = ::std::os::raw::c_int;
pub type moert_clock = i32;
pub const MOERT_CLOCK_INVALID: moert_clock_values = -1;
pub const MOERT_CLOCK_WALL: moert_clock_values = 0;
pub const MOERT_CLOCK_VIRTUAL: moert_clock_values = 1;
pub type moert_clock_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_error {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_source {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_engine {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_step {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_call {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_lease {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_failure {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type moert_stream = *mut CUstream_st;
extern "C" {
    pub fn moert_version() -> i32;
}
extern "C" {
    pub fn moert_version_string() -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_code_name(code: moert_code) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_error_code(error: *const moert_error) -> moert_code;
}
extern "C" {
    pub fn moert_error_message(error: *const moert_error) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_error_origin(error: *const moert_error) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_error_destroy(error: *mut moert_error);
}
extern "C" {
    pub fn moert_failure_set(failure: *mut moert_failure, message: *const ::std::os::raw::c_char);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_probe_info {
    pub struct_size: u64,
    pub cpus: i32,
    pub cuda_usable: i32,
    pub memory_bytes: i64,
    pub memory_available_bytes: i64,
    pub kernels: *const ::std::os::raw::c_char,
    pub cuda_status: *const ::std::os::raw::c_char,
}
extern "C" {
    pub fn moert_probe_info_init(info: *mut moert_probe_info, size: u64);
}
extern "C" {
    pub fn moert_probe(info: *mut moert_probe_info, error: *mut *mut moert_error) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_strategy_info {
    pub struct_size: u64,
    pub name: *const ::std::os::raw::c_char,
    pub summary: *const ::std::os::raw::c_char,
    pub keys: *const ::std::os::raw::c_char,
}
extern "C" {
    pub fn moert_strategy_info_init(info: *mut moert_strategy_info, size: u64);
}
extern "C" {
    pub fn moert_strategy_count() -> i32;
}
extern "C" {
    pub fn moert_strategy_at(
        index: i32,
        info: *mut moert_strategy_info,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_layer_spec {
    pub struct_size: u64,
    pub hidden: i64,
    pub intermediate: i64,
    pub shared_intermediate: i64,
    pub model_layer: i32,
    pub num_experts: i32,
    pub top_k: i32,
    pub routing: moert_routing,
    pub activation: moert_activation,
    pub shared_gate: i32,
    pub renormalize: i32,
    pub selection_bias: i32,
    pub num_groups: i32,
    pub top_groups: i32,
    pub scaling: f32,
    pub sparsemixer_eps: f32,
}
extern "C" {
    pub fn moert_layer_spec_init(spec: *mut moert_layer_spec, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_open_options {
    pub struct_size: u64,
    pub cache_dir: *const ::std::os::raw::c_char,
    pub user_data: *mut ::core::ffi::c_void,
    pub log: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            line: *const ::std::os::raw::c_char,
        ),
    >,
    pub progress: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            done_bytes: i64,
            total_bytes: i64,
        ),
    >,
}
extern "C" {
    pub fn moert_open_options_init(options: *mut moert_open_options, size: u64);
}
extern "C" {
    pub fn moert_source_open(
        model_dir: *const ::std::os::raw::c_char,
        options: *const moert_open_options,
        source: *mut *mut moert_source,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_source_open_pack(
        pack_dir: *const ::std::os::raw::c_char,
        source: *mut *mut moert_source,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
pub type moert_part = i32;
pub const MOERT_PART_INVALID: moert_part_values = -1;
pub const MOERT_PART_GATE_PROJ: moert_part_values = 0;
pub const MOERT_PART_UP_PROJ: moert_part_values = 1;
pub const MOERT_PART_DOWN_PROJ: moert_part_values = 2;
pub const MOERT_PART_ROUTER: moert_part_values = 3;
pub const MOERT_PART_SELECTION_BIAS: moert_part_values = 4;
pub const MOERT_PART_SHARED_GATE: moert_part_values = 5;
pub const MOERT_PART_RECORD: moert_part_values = 6;
pub type moert_part_values = ::std::os::raw::c_int;
pub const MOERT_SHARED_EXPERT: moert_expert_values = -1;
pub type moert_expert_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_read {
    pub struct_size: u64,
    pub layer: i32,
    pub expert: i32,
    pub part: moert_part,
    pub version: i32,
    pub first_row: i64,
    pub rows: i64,
    pub cols: i64,
    pub dst: *mut ::core::ffi::c_void,
    pub dst_bytes: u64,
    pub dtype: moert_dtype,
    pub reserved0: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_source_callbacks {
    pub struct_size: u64,
    pub user_data: *mut ::core::ffi::c_void,
    pub read: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            read: *const moert_read,
            failure: *mut moert_failure,
        ) -> moert_code,
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
    pub schemes: *const ::std::os::raw::c_char,
    pub weights_dtype: moert_dtype,
    pub reserved0: i32,
}
extern "C" {
    pub fn moert_source_callbacks_init(callbacks: *mut moert_source_callbacks, size: u64);
}
extern "C" {
    pub fn moert_source_create(
        name: *const ::std::os::raw::c_char,
        layers: *const moert_layer_spec,
        num_layers: u64,
        callbacks: *const moert_source_callbacks,
        source: *mut *mut moert_source,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_source_destroy(source: *mut moert_source);
}
extern "C" {
    pub fn moert_source_layer_count(source: *const moert_source) -> i32;
}
extern "C" {
    pub fn moert_source_layer(
        source: *const moert_source,
        layer: i32,
        spec: *mut moert_layer_spec,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_source_name(source: *const moert_source) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_policy_context {
    pub struct_size: u64,
    pub step: i64,
    pub now_ns: i64,
    pub request_ids: *const i64,
    pub num_request_ids: i64,
    pub layer: i32,
    pub phase: moert_phase,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_routing_view {
    pub struct_size: u64,
    pub tokens: i64,
    pub ids: *const i32,
    pub weights: *const f32,
    pub scores: *const f32,
    pub counts: *const i32,
    pub top_k: i32,
    pub num_experts: i32,
}
pub type moert_rule = i32;
pub const MOERT_RULE_INVALID: moert_rule_values = -1;
pub const MOERT_RULE_TOPK: moert_rule_values = 0;
pub const MOERT_RULE_EXPERT_CACHE: moert_rule_values = 1;
pub type moert_rule_values = ::std::os::raw::c_int;
pub type moert_substitute = i32;
pub const MOERT_SUBSTITUTE_INVALID: moert_substitute_values = -1;
pub const MOERT_SUBSTITUTE_BEST: moert_substitute_values = 0;
pub const MOERT_SUBSTITUTE_RANDOM: moert_substitute_values = 1;
pub const MOERT_SUBSTITUTE_NEAREST: moert_substitute_values = 2;
pub const MOERT_SUBSTITUTE_SKIP: moert_substitute_values = 3;
pub type moert_substitute_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_routing_rule {
    pub struct_size: u64,
    pub kind: moert_rule,
    pub alpha: f32,
    pub max_slot_share: f32,
    pub max_mass_share: f32,
    pub second_pass: i32,
    pub own_score_weights: i32,
    pub substitute: moert_substitute,
    pub reserved0: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_prefetch_snapshot {
    pub struct_size: u64,
    pub context: moert_policy_context,
    pub routing: moert_routing_view,
    pub predicted_scores: *const f32,
    pub resident: *const u8,
    pub usable: *const u8,
    pub in_flight: *const u8,
    pub target_layer: i32,
    pub target_experts: i32,
    pub window_ns: i64,
    pub transfer_ns: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_candidate {
    pub struct_size: u64,
    pub last_used: i64,
    pub inserted: i64,
    pub uses: i64,
    pub layer: i32,
    pub expert: i32,
    pub unused_prefetch: i32,
    pub tokens: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_victim_snapshot {
    pub struct_size: u64,
    pub context: moert_policy_context,
    pub candidates: *const moert_candidate,
    pub num_candidates: i64,
    pub incoming_layer: i32,
    pub incoming_expert: i32,
    pub for_prefetch: i32,
    pub reserved0: i32,
    pub dispensable: i32,
    pub reserved1: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_precision_snapshot {
    pub struct_size: u64,
    pub context: moert_policy_context,
    pub selections: *const i64,
    pub high: *const u8,
    pub high_capacity: *const i32,
    pub total_experts: i64,
    pub num_layers: i32,
    pub reserved0: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_transfer_snapshot {
    pub struct_size: u64,
    pub context: moert_policy_context,
    pub layer_tokens: i64,
    pub expert: i32,
    pub tokens: i32,
    pub prefetch: i32,
    pub num_versions: i32,
    pub layer_counts: *const i32,
    pub num_experts: i32,
    pub reserved0: i32,
}
pub type moert_placement = i32;
pub const MOERT_PLACEMENT_INVALID: moert_placement_values = -1;
pub const MOERT_PLACE_LOAD: moert_placement_values = 0;
pub const MOERT_PLACE_CPU: moert_placement_values = 1;
pub const MOERT_PLACE_LOW: moert_placement_values = 2;
pub type moert_placement_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_miss {
    pub struct_size: u64,
    pub bytes: i64,
    pub load_ns: i64,
    pub cpu_ns: i64,
    pub expert: i32,
    pub tokens: i32,
    pub mass: f32,
    pub low_resident: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_policies {
    pub struct_size: u64,
    pub user_data: *mut ::core::ffi::c_void,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
    pub observe: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            routing: *const moert_routing_view,
        ),
    >,
    pub routing_rule: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            rule: *mut moert_routing_rule,
        ) -> moert_code,
    >,
    pub prefetch_rank: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_prefetch_snapshot,
            experts: *mut i32,
            capacity: i32,
            count: *mut i32,
        ) -> moert_code,
    >,
    pub residency_capacity: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            slots: i64,
            capacity: *mut i32,
            num_layers: i32,
        ) -> moert_code,
    >,
    pub residency_victim: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_victim_snapshot,
            victim: *mut i64,
        ) -> moert_code,
    >,
    pub residency_insert: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            layer: i32,
            expert: i32,
            prefetch: i32,
        ),
    >,
    pub residency_evict: ::core::option::Option<
        unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void, layer: i32, expert: i32),
    >,
    pub precision_decide: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_precision_snapshot,
            promote: *mut i64,
            num_promote: *mut i64,
            demote: *mut i64,
            num_demote: *mut i64,
        ) -> moert_code,
    >,
    pub precision_transfer: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_transfer_snapshot,
            version: *mut i32,
        ) -> moert_code,
    >,
    pub placement: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            misses: *const moert_miss,
            num_misses: i32,
            decisions: *mut moert_placement,
        ) -> moert_code,
    >,
    pub wants_next_gate: i32,
    pub reserved0: i32,
    pub residency_wants_capacity: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            wants: *mut i32,
        ) -> moert_code,
    >,
    pub precision_upgrades: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            upgrades: *mut i32,
        ) -> moert_code,
    >,
    pub placement_fills: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            fills: *mut i32,
        ) -> moert_code,
    >,
}
extern "C" {
    pub fn moert_policies_init(policies: *mut moert_policies, size: u64);
}
pub type moert_job = ::core::option::Option<
    unsafe extern "C" fn(job_data: *mut ::core::ffi::c_void, index: i64, worker: i32),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_thread_pool {
    pub struct_size: u64,
    pub user_data: *mut ::core::ffi::c_void,
    pub run: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            num_jobs: i64,
            job: moert_job,
            job_data: *mut ::core::ffi::c_void,
        ),
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
    pub num_threads: i32,
    pub reserved0: i32,
}
extern "C" {
    pub fn moert_thread_pool_init(pool: *mut moert_thread_pool, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_allocator {
    pub struct_size: u64,
    pub user_data: *mut ::core::ffi::c_void,
    pub allocate: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            bytes: u64,
            alignment: u64,
        ) -> *mut ::core::ffi::c_void,
    >,
    pub deallocate: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            memory: *mut ::core::ffi::c_void,
            bytes: u64,
        ),
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
}
extern "C" {
    pub fn moert_allocator_init(allocator: *mut moert_allocator, size: u64);
}
pub type moert_log_level = i32;
pub const MOERT_LOG_INVALID: moert_log_level_values = -1;
pub const MOERT_LOG_INFO: moert_log_level_values = 0;
pub const MOERT_LOG_WARNING: moert_log_level_values = 1;
pub const MOERT_LOG_ERROR: moert_log_level_values = 2;
pub type moert_log_level_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_logger {
    pub struct_size: u64,
    pub user_data: *mut ::core::ffi::c_void,
    pub log: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            level: moert_log_level,
            line: *const ::std::os::raw::c_char,
        ),
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
}
extern "C" {
    pub fn moert_logger_init(logger: *mut moert_logger, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_engine_options {
    pub struct_size: u64,
    pub strategy: *const ::std::os::raw::c_char,
    pub budget_bytes: i64,
    pub budget_fraction: f64,
    pub max_tokens_per_forward: i64,
    pub numerics: moert_numerics,
    pub clock: moert_clock,
    pub profile: *const ::std::os::raw::c_char,
    pub link_gbps: f64,
    pub seed: u64,
    pub threads: i32,
    pub io_threads: i32,
    pub kernels: *const ::std::os::raw::c_char,
    pub backend: moert_backend,
    pub device: i32,
    pub host_budget_bytes: i64,
    pub cpus: *const ::std::os::raw::c_char,
    pub trace_path: *const ::std::os::raw::c_char,
    pub policies: *const moert_policies,
    pub thread_pool: *const moert_thread_pool,
    pub allocator: *const moert_allocator,
    pub logger: *const moert_logger,
}
extern "C" {
    pub fn moert_engine_options_init(options: *mut moert_engine_options, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_memory {
    pub struct_size: u64,
    pub budget_bytes: i64,
    pub constant_bytes: i64,
    pub table_bytes: i64,
    pub workspace_bytes: i64,
    pub block_bytes: i64,
    pub slots: i64,
    pub low_block_bytes: i64,
    pub low_slots: i64,
    pub spare_slots: i64,
    pub total_experts: i64,
    pub minimum_bytes: i64,
}
extern "C" {
    pub fn moert_memory_init(memory: *mut moert_memory, size: u64);
}
extern "C" {
    pub fn moert_plan(
        source: *const moert_source,
        options: *const moert_engine_options,
        memory: *mut moert_memory,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_create(
        source: *const moert_source,
        options: *const moert_engine_options,
        engine: *mut *mut moert_engine,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_destroy(engine: *mut moert_engine);
}
extern "C" {
    pub fn moert_engine_set_budget(
        engine: *mut moert_engine,
        bytes: i64,
        fraction: f64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_memory(
        engine: *const moert_engine,
        memory: *mut moert_memory,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_layer_count(engine: *const moert_engine) -> i32;
}
extern "C" {
    pub fn moert_engine_layer(
        engine: *const moert_engine,
        layer: i32,
        spec: *mut moert_layer_spec,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_now_ns(engine: *const moert_engine) -> i64;
}
extern "C" {
    pub fn moert_engine_backend(engine: *const moert_engine) -> moert_backend;
}
extern "C" {
    pub fn moert_engine_exact(engine: *const moert_engine) -> i32;
}
extern "C" {
    pub fn moert_engine_graph_safe(engine: *const moert_engine) -> i32;
}
extern "C" {
    pub fn moert_engine_strategy(engine: *const moert_engine) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_engine_close_trace(
        engine: *mut moert_engine,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_prefetch_hint(
        engine: *mut moert_engine,
        layer: i32,
        experts: *const i32,
        count: i64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
pub const MOERT_ABSENT: moert_residency_values = 0;
pub const MOERT_ARRIVING: moert_residency_values = 1;
pub const MOERT_RESIDENT_LOW: moert_residency_values = 2;
pub const MOERT_RESIDENT_HIGH: moert_residency_values = 3;
pub type moert_residency_values = ::std::os::raw::c_uint;
extern "C" {
    pub fn moert_residency(
        engine: *mut moert_engine,
        layer: i32,
        states: *mut u8,
        count: i64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_step_info {
    pub struct_size: u64,
    pub rows: i64,
    pub phase: moert_phase,
    pub reserved0: i32,
    pub user_data: *mut ::core::ffi::c_void,
    pub predict_next: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            layer: i32,
            partial: *const f32,
            rows: i64,
            next_input: *mut f32,
        ) -> moert_code,
    >,
}
extern "C" {
    pub fn moert_step_info_init(info: *mut moert_step_info, size: u64);
}
extern "C" {
    pub fn moert_step_begin(
        engine: *mut moert_engine,
        info: *const moert_step_info,
        request_ids: *const i64,
        positions: *const i32,
        stream: moert_stream,
        step: *mut *mut moert_step,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_step_status(step: *const moert_step, error: *mut *mut moert_error) -> moert_code;
}
extern "C" {
    pub fn moert_step_cancel(step: *mut moert_step, error: *mut *mut moert_error) -> moert_code;
}
extern "C" {
    pub fn moert_step_end(step: *mut moert_step, error: *mut *mut moert_error) -> moert_code;
}
extern "C" {
    pub fn moert_layer_forward(
        step: *mut moert_step,
        layer: i32,
        hidden: *const ::core::ffi::c_void,
        row_stride: i64,
        dtype: moert_dtype,
        n_tokens: i64,
        out: *mut ::core::ffi::c_void,
        stream: moert_stream,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_layer_forward_routed(
        step: *mut moert_step,
        layer: i32,
        hidden: *const ::core::ffi::c_void,
        row_stride: i64,
        dtype: moert_dtype,
        n_tokens: i64,
        ids: *const i32,
        weights: *const f32,
        top_k: i32,
        used_ids: *mut i32,
        out: *mut ::core::ffi::c_void,
        stream: moert_stream,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_completion {
    pub struct_size: u64,
    pub user_data: *mut ::core::ffi::c_void,
    pub done: ::core::option::Option<
        unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void, code: moert_code),
    >,
    pub eventfd: i32,
    pub reserved0: i32,
}
extern "C" {
    pub fn moert_completion_init(completion: *mut moert_completion, size: u64);
}
extern "C" {
    pub fn moert_layer_begin(
        step: *mut moert_step,
        layer: i32,
        hidden: *const ::core::ffi::c_void,
        row_stride: i64,
        dtype: moert_dtype,
        n_tokens: i64,
        out: *mut ::core::ffi::c_void,
        stream: moert_stream,
        completion: *const moert_completion,
        call: *mut *mut moert_call,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_call_done(call: *const moert_call) -> i32;
}
extern "C" {
    pub fn moert_layer_finish(call: *mut moert_call, error: *mut *mut moert_error) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_matrix {
    pub scheme: *const ::std::os::raw::c_char,
    pub rows: i64,
    pub k: i64,
    pub padded_rows: i64,
    pub padded_k: i64,
    pub group: i64,
    pub weight_offset: i64,
    pub weight_bytes: i64,
    pub scale_offset: i64,
    pub scale_bytes: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_expert_view {
    pub struct_size: u64,
    pub record: *const ::core::ffi::c_void,
    pub bytes: i64,
    pub expert: i32,
    pub version: i32,
    pub gate: moert_matrix,
    pub up: moert_matrix,
    pub down: moert_matrix,
}
extern "C" {
    pub fn moert_expert_view_init(view: *mut moert_expert_view, size: u64);
}
extern "C" {
    pub fn moert_lease_acquire(
        step: *mut moert_step,
        layer: i32,
        experts: *const i32,
        count: i64,
        lease: *mut *mut moert_lease,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_lease_view(
        lease: *const moert_lease,
        index: i64,
        view: *mut moert_expert_view,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_lease_read(
        lease: *const moert_lease,
        index: i64,
        part: moert_part,
        dst: *mut f32,
        count: u64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_lease_release(lease: *mut moert_lease);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_stats {
    pub struct_size: u64,
    pub budget_bytes: i64,
    pub peak_bytes: i64,
    pub fixed_bytes: i64,
    pub pool_bytes: i64,
    pub lookups: i64,
    pub hits_resident: i64,
    pub hits_prefetched: i64,
    pub late: i64,
    pub loads: i64,
    pub bytes_loaded: i64,
    pub evictions: i64,
    pub low_answers: i64,
    pub cpu_computed: i64,
    pub prefetch_issued: i64,
    pub prefetch_useful: i64,
    pub prefetch_bytes: i64,
    pub prefetch_predicted: i64,
    pub prefetch_recalled: i64,
    pub slots: i64,
    pub slots_substituted: i64,
    pub mass: f64,
    pub mass_substituted: f64,
    pub worst_slot_share: f64,
    pub worst_mass_share: f64,
    pub model_lookups: i64,
    pub model_hits: i64,
    pub promotions: i64,
    pub demotions: i64,
    pub deferred: i64,
    pub balance_load_ns: i64,
    pub balance_cpu_ns: i64,
    pub policy_fallbacks: i64,
    pub stall_miss_ns: i64,
    pub stall_queue_ns: i64,
    pub stall_staging_ns: i64,
    pub stall_cpu_ns: i64,
    pub host_syncs: i64,
    pub prefetch_disabled: i32,
    pub graph_captured: i32,
    pub prefetch_active: i64,
    pub prefetch_top_score: i64,
    pub predictions_resident_forward: i64,
    pub predictions_next_gate: i64,
    pub prefetch_cancelled: i64,
    pub prefetch_recalled_in_window: i64,
    pub prefetch_disabled_steps: i64,
    pub slots_low: i64,
    pub mass_low: f64,
    pub low_loads: i64,
    pub upgrades: i64,
    pub fills: i64,
    pub prefetch_trials: i64,
    pub prefetch_switches: i64,
}
extern "C" {
    pub fn moert_stats_init(stats: *mut moert_stats, size: u64);
}
extern "C" {
    pub fn moert_engine_stats(
        engine: *const moert_engine,
        stats: *mut moert_stats,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_prometheus(
        engine: *const moert_engine,
        label: *const ::std::os::raw::c_char,
        buffer: *mut ::std::os::raw::c_char,
        buffer_bytes: u64,
        needed: *mut u64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
