//! Bindings of moert.h, made by `examples/rust/moert-sys/generate.sh`; checked in so that no build
//! needs bindgen.
#![allow(non_camel_case_types, non_upper_case_globals, clippy::all)]


pub const MOERT_VERSION_MAJOR: u32 = 0;
pub const MOERT_VERSION_MINOR: u32 = 2;
pub const MOERT_VERSION_PATCH: u32 = 0;
pub type __uint8_t = ::std::os::raw::c_uchar;
pub type __int32_t = ::std::os::raw::c_int;
pub type __int64_t = ::std::os::raw::c_long;
pub type __uint64_t = ::std::os::raw::c_ulong;
extern "C" {
    pub fn moert_version() -> i32;
}
extern "C" {
    pub fn moert_version_string() -> *const ::std::os::raw::c_char;
}
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
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_error {
    _unused: [u8; 0],
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
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_failure {
    _unused: [u8; 0],
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
    pub schemes: *const ::std::os::raw::c_char,
    pub cuda_status: *const ::std::os::raw::c_char,
}
extern "C" {
    pub fn moert_probe_info_init(info: *mut moert_probe_info, size: u64);
}
extern "C" {
    pub fn moert_probe(info: *mut moert_probe_info, error: *mut *mut moert_error) -> moert_code;
}
pub type moert_dtype = i32;
pub const MOERT_DTYPE_INVALID: moert_dtype_values = -1;
pub const MOERT_F32: moert_dtype_values = 0;
pub const MOERT_BF16: moert_dtype_values = 1;
pub const MOERT_F16: moert_dtype_values = 2;
pub const MOERT_U8: moert_dtype_values = 4;
pub const MOERT_I32: moert_dtype_values = 5;
pub type moert_dtype_values = ::std::os::raw::c_int;
pub type moert_place = i32;
pub const MOERT_PLACE_INVALID: moert_place_values = -1;
pub const MOERT_HOST: moert_place_values = 0;
pub const MOERT_DEVICE: moert_place_values = 1;
pub type moert_place_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_tensor {
    pub data: *mut ::core::ffi::c_void,
    pub rows: i64,
    pub cols: i64,
    pub row_stride: i64,
    pub dtype: moert_dtype,
    pub place: moert_place,
}
extern "C" {
    pub fn moert_tensor_init(
        tensor: *mut moert_tensor,
        data: *mut ::core::ffi::c_void,
        rows: i64,
        cols: i64,
        dtype: moert_dtype,
    );
}
pub type moert_routing_kind = i32;
pub const MOERT_ROUTING_INVALID: moert_routing_kind_values = -1;
pub const MOERT_ROUTING_SOFTMAX_TOPK: moert_routing_kind_values = 0;
pub const MOERT_ROUTING_TOPK_SOFTMAX: moert_routing_kind_values = 1;
pub const MOERT_ROUTING_SIGMOID_GROUPED: moert_routing_kind_values = 2;
pub const MOERT_ROUTING_SPARSEMIXER: moert_routing_kind_values = 3;
pub const MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED: moert_routing_kind_values = 4;
pub const MOERT_ROUTING_TOPK_SIGMOID: moert_routing_kind_values = 5;
pub const MOERT_ROUTING_EXTERNAL: moert_routing_kind_values = 6;
pub type moert_routing_kind_values = ::std::os::raw::c_int;
pub type moert_activation = i32;
pub const MOERT_ACTIVATION_INVALID: moert_activation_values = -1;
pub const MOERT_SILU: moert_activation_values = 0;
pub const MOERT_GELU: moert_activation_values = 1;
pub const MOERT_GELU_TANH: moert_activation_values = 2;
pub const MOERT_RELU2: moert_activation_values = 3;
pub type moert_activation_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_layer_spec {
    pub struct_size: u64,
    pub hidden: i64,
    pub intermediate: i64,
    pub shared_intermediate: i64,
    pub num_experts: i32,
    pub model_layer: i32,
    pub activation: moert_activation,
    pub shared_gate: i32,
    pub routing: moert_routing_kind,
    pub top_k: i32,
    pub renormalize: i32,
    pub selection_bias: i32,
    pub num_groups: i32,
    pub top_groups: i32,
    pub scaling: f32,
    pub sparsemixer_eps: f32,
    pub logit_bias: i32,
    pub weight_input: i32,
    pub expert_scales: i32,
    pub hash_vocab: i32,
    pub ungated: i32,
    pub expert_bias: i32,
    pub activation_alpha: f32,
    pub activation_limit: f32,
    pub up_offset: f32,
    pub reserved: i32,
}
extern "C" {
    pub fn moert_layer_spec_init(spec: *mut moert_layer_spec, size: u64);
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
pub struct moert_source {
    _unused: [u8; 0],
}
pub type moert_open_mode = i32;
pub const MOERT_OPEN_MODE_INVALID: moert_open_mode_values = -1;
pub const MOERT_OPEN_PACK_IF_THERE: moert_open_mode_values = 0;
pub const MOERT_OPEN_PACK: moert_open_mode_values = 1;
pub const MOERT_OPEN_IN_PLACE: moert_open_mode_values = 2;
pub type moert_open_mode_values = ::std::os::raw::c_int;
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
    pub widen: i32,
    pub mode: moert_open_mode,
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
pub const MOERT_PART_LOGIT_BIAS: moert_part_values = 7;
pub const MOERT_PART_EXPERT_SCALES: moert_part_values = 8;
pub const MOERT_PART_HASH_EXPERTS: moert_part_values = 9;
pub const MOERT_PART_GATE_BIAS: moert_part_values = 10;
pub const MOERT_PART_UP_BIAS: moert_part_values = 11;
pub const MOERT_PART_DOWN_BIAS: moert_part_values = 12;
pub type moert_part_values = ::std::os::raw::c_int;
pub const MOERT_MAX_PARTS: moert_part_limits = 8;
pub type moert_part_limits = ::std::os::raw::c_uint;
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
    pub dst: moert_tensor,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_source_callbacks {
    pub struct_size: u64,
    pub weights_dtype: moert_dtype,
    pub schemes: *const ::std::os::raw::c_char,
    pub user_data: *mut ::core::ffi::c_void,
    pub read: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            read: *const moert_read,
            failure: *mut moert_failure,
        ) -> moert_code,
    >,
    pub pinned_record: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            layer: i32,
            expert: i32,
            version: i32,
        ) -> *const ::core::ffi::c_void,
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
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
    pub fn moert_source_name(source: *const moert_source) -> *const ::std::os::raw::c_char;
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
    pub fn moert_source_version_count(source: *const moert_source) -> i32;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_record_info {
    pub struct_size: u64,
    pub version: *const ::std::os::raw::c_char,
    pub bytes: i64,
    pub hadamard: i32,
    pub gate: moert_matrix,
    pub up: moert_matrix,
    pub down: moert_matrix,
    pub gate_bias_offset: i64,
    pub up_bias_offset: i64,
    pub down_bias_offset: i64,
}
extern "C" {
    pub fn moert_record_info_init(info: *mut moert_record_info, size: u64);
}
extern "C" {
    pub fn moert_source_record(
        source: *const moert_source,
        layer: i32,
        expert: i32,
        version: i32,
        info: *mut moert_record_info,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_source_read(
        source: *const moert_source,
        layer: i32,
        expert: i32,
        version: i32,
        dst: *mut ::core::ffi::c_void,
        dst_bytes: u64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_opaque_part {
    pub struct_size: u64,
    pub bytes: i64,
    pub alignment: i64,
    pub stride_multiple: i64,
    pub memory: *const ::core::ffi::c_void,
    pub offset: i64,
    pub stride: i64,
    pub layer: i32,
    pub file: i32,
    pub zeros: i64,
}
extern "C" {
    pub fn moert_opaque_part_init(part: *mut moert_opaque_part, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_cpu_expert {
    pub part: [*const ::core::ffi::c_void; 8usize],
    pub pairs: i64,
    pub expert: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_cpu_job {
    pub struct_size: u64,
    pub layer: i64,
    pub hidden: i64,
    pub rows: i64,
    pub x: *const f32,
    pub num_experts: i64,
    pub experts: *const moert_cpu_expert,
    pub pairs: i64,
    pub row_of: *const i32,
    pub weights: *const f32,
    pub out: *mut f32,
    pub run: ::core::option::Option<
        unsafe extern "C" fn(
            pool: *mut ::core::ffi::c_void,
            count: i64,
            task: ::core::option::Option<
                unsafe extern "C" fn(arg: *mut ::core::ffi::c_void, i: i64, thread: i32),
            >,
            arg: *mut ::core::ffi::c_void,
        ),
    >,
    pub pool: *mut ::core::ffi::c_void,
    pub threads: i64,
}
pub type moert_cpu_product = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        job: *const moert_cpu_job,
        failure: *mut moert_failure,
    ) -> moert_code,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_opaque_options {
    pub struct_size: u64,
    pub format: *const ::std::os::raw::c_char,
    pub files: *const *const ::std::os::raw::c_char,
    pub num_files: i64,
    pub user_data: *mut ::core::ffi::c_void,
    pub read: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            layer: i32,
            expert: i32,
            part: i32,
            dst: *mut ::core::ffi::c_void,
            bytes: i64,
            failure: *mut moert_failure,
        ) -> moert_code,
    >,
    pub gates: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            read: *const moert_read,
            failure: *mut moert_failure,
        ) -> moert_code,
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
    pub product: moert_cpu_product,
}
extern "C" {
    pub fn moert_opaque_options_init(options: *mut moert_opaque_options, size: u64);
}
extern "C" {
    pub fn moert_source_create_opaque(
        name: *const ::std::os::raw::c_char,
        layers: *const moert_layer_spec,
        num_layers: u64,
        parts: *const moert_opaque_part,
        num_parts: u64,
        options: *const moert_opaque_options,
        source: *mut *mut moert_source,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
pub type moert_job = ::core::option::Option<
    unsafe extern "C" fn(job_data: *mut ::core::ffi::c_void, index: i64, worker: i32),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_thread_pool {
    pub struct_size: u64,
    pub num_threads: i32,
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
pub type moert_phase = i32;
pub const MOERT_PHASE_INVALID: moert_phase_values = -1;
pub const MOERT_PREFILL: moert_phase_values = 0;
pub const MOERT_DECODE: moert_phase_values = 1;
pub type moert_phase_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_policy_context {
    pub struct_size: u64,
    pub step: i64,
    pub now_ns: i64,
    pub layer: i32,
    pub phase: moert_phase,
    pub request_ids: *const i64,
    pub num_request_ids: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_routing_view {
    pub struct_size: u64,
    pub tokens: i64,
    pub top_k: i32,
    pub num_experts: i32,
    pub ids: *const i32,
    pub weights: *const f32,
    pub scores: *const f32,
    pub counts: *const i32,
}
pub type moert_rule = i32;
pub const MOERT_RULE_INVALID: moert_rule_values = -1;
pub const MOERT_RULE_TOPK: moert_rule_values = 0;
pub const MOERT_RULE_EXPERT_CACHE: moert_rule_values = 1;
pub type moert_rule_values = ::std::os::raw::c_int;
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
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_prefetch_snapshot {
    pub struct_size: u64,
    pub context: *const moert_policy_context,
    pub routing: *const moert_routing_view,
    pub target_layer: i32,
    pub target_experts: i32,
    pub predicted_scores: *const f32,
    pub resident: *const u8,
    pub usable: *const u8,
    pub in_flight: *const u8,
    pub target_capacity: i64,
    pub window_ns: i64,
    pub transfer_ns: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_prediction {
    pub expert: i32,
    pub score: f32,
    pub tokens: i32,
}
pub type moert_prefetch_kind = i32;
pub const MOERT_PREFETCH_INVALID: moert_prefetch_kind_values = -1;
pub const MOERT_PREFETCH_NEXT_GATE: moert_prefetch_kind_values = 0;
pub const MOERT_PREFETCH_TOP_SCORE: moert_prefetch_kind_values = 1;
pub type moert_prefetch_kind_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_prefetch_rule {
    pub struct_size: u64,
    pub kind: moert_prefetch_kind,
    pub wrap: i32,
    pub alpha: f32,
    pub resident_forward: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_prefetch_outlook {
    pub recall: f64,
    pub transfers: f64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_capacity_snapshot {
    pub struct_size: u64,
    pub slots: i64,
    pub num_layers: i64,
    pub prefetch: *const moert_prefetch_outlook,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_candidate {
    pub layer: i32,
    pub expert: i32,
    pub last_used: i64,
    pub inserted: i64,
    pub uses: i64,
    pub tokens: i32,
    pub unused_prefetch: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_victim_snapshot {
    pub struct_size: u64,
    pub context: *const moert_policy_context,
    pub candidates: *const moert_candidate,
    pub num_candidates: i64,
    pub incoming_layer: i32,
    pub incoming_expert: i32,
    pub for_prefetch: i32,
    pub dispensable: i32,
}
pub type moert_residency_kind = i32;
pub const MOERT_RESIDENCY_INVALID: moert_residency_kind_values = -1;
pub const MOERT_LEAST_RECENTLY_USED: moert_residency_kind_values = 0;
pub const MOERT_LEAST_WORTH: moert_residency_kind_values = 1;
pub const MOERT_LEAST_AVERAGE_SCORE: moert_residency_kind_values = 2;
pub type moert_residency_kind_values = ::std::os::raw::c_int;
pub type moert_capacity_kind = i32;
pub const MOERT_CAPACITY_INVALID: moert_capacity_kind_values = -1;
pub const MOERT_CAPACITY_UNIFORM: moert_capacity_kind_values = 0;
pub const MOERT_CAPACITY_SHALLOW_FIRST: moert_capacity_kind_values = 1;
pub const MOERT_CAPACITY_MEASURED: moert_capacity_kind_values = 2;
pub type moert_capacity_kind_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_residency_rule {
    pub struct_size: u64,
    pub kind: moert_residency_kind,
    pub window: i32,
    pub shared_slots: i32,
    pub capacity: moert_capacity_kind,
    pub shallow: i32,
    pub transient: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_precision_snapshot {
    pub struct_size: u64,
    pub context: *const moert_policy_context,
    pub selections: *const i64,
    pub high: *const u8,
    pub total_experts: i64,
    pub high_capacity: *const i32,
    pub num_layers: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_transfer_snapshot {
    pub struct_size: u64,
    pub context: *const moert_policy_context,
    pub expert: i32,
    pub prefetch: i32,
    pub tokens: i32,
    pub num_versions: i32,
    pub layer_tokens: i64,
    pub layer_counts: *const i32,
    pub num_experts: i64,
}
pub type moert_placement = i32;
pub const MOERT_PLACEMENT_INVALID: moert_placement_values = -1;
pub const MOERT_LOAD_MISS: moert_placement_values = 0;
pub const MOERT_COMPUTE_ON_CPU: moert_placement_values = 1;
pub type moert_placement_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_miss {
    pub expert: i32,
    pub tokens: i32,
    pub mass: f32,
    pub arriving: i32,
    pub bytes: i64,
    pub load_ns: i64,
    pub cpu_ns: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_placement_snapshot {
    pub struct_size: u64,
    pub context: *const moert_policy_context,
    pub misses: *const moert_miss,
    pub num_misses: i64,
    pub link_busy_ns: i64,
}
pub type moert_cpu_balance = i32;
pub const MOERT_CPU_BALANCE_INVALID: moert_cpu_balance_values = -1;
pub const MOERT_CPU_BALANCE_NONE: moert_cpu_balance_values = 0;
pub const MOERT_CPU_BALANCE_IN_TURNS: moert_cpu_balance_values = 1;
pub const MOERT_CPU_BALANCE_BY_COMPLETION: moert_cpu_balance_values = 2;
pub type moert_cpu_balance_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_placement_rule {
    pub struct_size: u64,
    pub balance: moert_cpu_balance,
    pub backfills: i32,
    pub max_low_share: f64,
    pub low_patience: f64,
    pub spares_low: i32,
    pub reserved: i32,
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
    pub routing_check: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            layers: *const moert_layer_spec,
            num_layers: i32,
            failure: *mut moert_failure,
        ) -> moert_code,
    >,
    pub routing_rule: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            rule: *mut moert_routing_rule,
        ) -> moert_code,
    >,
    pub prefetch_wants_next_gate: i32,
    pub prefetch_wants_resident_forward: i32,
    pub prefetch_rank: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_prefetch_snapshot,
            ranked: *mut moert_prediction,
            capacity: i32,
            count: *mut i32,
        ) -> moert_code,
    >,
    pub residency_capacity: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_capacity_snapshot,
            capacity: *mut i32,
        ) -> moert_code,
    >,
    pub residency_wants_capacity: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            wants: *mut i32,
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
    pub precision_initial: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            high_capacity: *const i32,
            num_layers: i32,
            total_experts: i64,
            high: *mut i64,
            num_high: *mut i64,
            failure: *mut moert_failure,
        ) -> moert_code,
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
    pub precision_worth: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_precision_snapshot,
            worth: *mut f64,
        ) -> moert_code,
    >,
    pub precision_transfer: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_transfer_snapshot,
            version: *mut i32,
        ) -> moert_code,
    >,
    pub precision_upgrades: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            upgrades: *mut i32,
        ) -> moert_code,
    >,
    pub placement: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            snapshot: *const moert_placement_snapshot,
            decisions: *mut moert_placement,
        ) -> moert_code,
    >,
    pub placement_backfills: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            context: *const moert_policy_context,
            free_slots: i32,
            backfills: *mut i32,
        ) -> moert_code,
    >,
    pub prefetch_rule: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            rule: *mut moert_prefetch_rule,
        ) -> moert_code,
    >,
    pub residency_rule: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            rule: *mut moert_residency_rule,
        ) -> moert_code,
    >,
    pub placement_rule: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            rule: *mut moert_placement_rule,
        ) -> moert_code,
    >,
    pub routing_by_phase: i32,
    pub reserved: i32,
    pub state_bytes: i64,
}
extern "C" {
    pub fn moert_policies_init(policies: *mut moert_policies, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_call_times {
    pub struct_size: u64,
    pub step_begin_ns: i64,
    pub begin_ns: i64,
    pub end_ns: i64,
    pub route_ns: i64,
    pub multiply_ns: i64,
    pub stalled_ns: i64,
}
extern "C" {
    pub fn moert_call_times_init(times: *mut moert_call_times, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_trace_call {
    pub struct_size: u64,
    pub step: i64,
    pub layer: i32,
    pub phase: moert_phase,
    pub tokens: i64,
    pub top_k: i32,
    pub num_experts: i32,
    pub request_ids: *const i64,
    pub ids: *const i32,
    pub weights: *const f32,
    pub scores: *const f32,
    pub next_scores: *const f32,
    pub next_experts: i64,
    pub times: *const moert_call_times,
}
pub type moert_track = i32;
pub const MOERT_TRACK_INVALID: moert_track_values = -1;
pub const MOERT_TRACK_STEPS: moert_track_values = 0;
pub const MOERT_TRACK_LAYERS: moert_track_values = 1;
pub const MOERT_TRACK_STALLS: moert_track_values = 2;
pub const MOERT_TRACK_LINK: moert_track_values = 3;
pub type moert_track_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_trace_span {
    pub struct_size: u64,
    pub name: *const ::std::os::raw::c_char,
    pub track: moert_track,
    pub begin_ns: i64,
    pub end_ns: i64,
    pub step: i64,
    pub layer: i32,
    pub expert: i32,
    pub bytes: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_trace_sink {
    pub struct_size: u64,
    pub wants_next_scores: i32,
    pub user_data: *mut ::core::ffi::c_void,
    pub on_call: ::core::option::Option<
        unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void, call: *const moert_trace_call),
    >,
    pub on_span: ::core::option::Option<
        unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void, span: *const moert_trace_span),
    >,
    pub destroy: ::core::option::Option<unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void)>,
}
extern "C" {
    pub fn moert_trace_sink_init(sink: *mut moert_trace_sink, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_engine {
    _unused: [u8; 0],
}
pub type moert_backend = i32;
pub const MOERT_BACKEND_INVALID: moert_backend_values = -1;
pub const MOERT_BACKEND_AUTO: moert_backend_values = 0;
pub const MOERT_BACKEND_CPU: moert_backend_values = 1;
pub const MOERT_BACKEND_CUDA: moert_backend_values = 2;
pub type moert_backend_values = ::std::os::raw::c_int;
pub type moert_numerics = i32;
pub const MOERT_NUMERICS_INVALID: moert_numerics_values = -1;
pub const MOERT_NUMERICS_BF16: moert_numerics_values = 0;
pub const MOERT_NUMERICS_F32: moert_numerics_values = 1;
pub const MOERT_NUMERICS_INT8: moert_numerics_values = 2;
pub const MOERT_NUMERICS_FP8: moert_numerics_values = 3;
pub type moert_numerics_values = ::std::os::raw::c_int;
pub type moert_clock = i32;
pub const MOERT_CLOCK_INVALID: moert_clock_values = -1;
pub const MOERT_CLOCK_WALL: moert_clock_values = 0;
pub const MOERT_CLOCK_VIRTUAL: moert_clock_values = 1;
pub const MOERT_CLOCK_SIMULATION: moert_clock_values = 2;
pub type moert_clock_values = ::std::os::raw::c_int;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_shard {
    pub struct_size: u64,
    pub first_expert: i64,
    pub num_experts: i64,
    pub expert_list: *const i32,
    pub expert_list_size: i64,
    pub first_channel: i64,
    pub num_channels: i64,
    pub shared_experts: i64,
}
extern "C" {
    pub fn moert_shard_init(shard: *mut moert_shard, size: u64);
}
extern "C" {
    pub fn moert_shards_check(
        source: *const moert_source,
        shards: *const moert_shard,
        num_shards: i64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_engine_options {
    pub struct_size: u64,
    pub strategy: *const ::std::os::raw::c_char,
    pub policies: *const moert_policies,
    pub budget_bytes: i64,
    pub budget_fraction: f64,
    pub host_budget_bytes: i64,
    pub max_tokens_per_forward: i64,
    pub allocator: *const moert_allocator,
    pub backend: moert_backend,
    pub device: i32,
    pub numerics: moert_numerics,
    pub io_threads: i32,
    pub threads: i32,
    pub clock: moert_clock,
    pub cpus: *const ::std::os::raw::c_char,
    pub kernels: *const ::std::os::raw::c_char,
    pub profile: *const ::std::os::raw::c_char,
    pub link_gbps: f64,
    pub thread_pool: *const moert_thread_pool,
    pub logger: *const moert_logger,
    pub trace_sink: *const moert_trace_sink,
    pub trace_path: *const ::std::os::raw::c_char,
    pub shard: *const moert_shard,
    pub open_user_data: *mut ::core::ffi::c_void,
    pub open_progress: ::core::option::Option<
        unsafe extern "C" fn(
            user_data: *mut ::core::ffi::c_void,
            loaded_experts: i64,
            total_experts: i64,
        ) -> moert_code,
    >,
    pub numa_node: i64,
    pub timeline_path: *const ::std::os::raw::c_char,
    pub trace_replace: i64,
    pub promise: *const ::std::os::raw::c_char,
}
extern "C" {
    pub fn moert_engine_options_init(options: *mut moert_engine_options, size: u64);
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
    pub fn moert_engine_backend(engine: *const moert_engine) -> moert_backend;
}
extern "C" {
    pub fn moert_engine_strategy(engine: *const moert_engine) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_engine_promise(engine: *const moert_engine) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn moert_engine_exact(engine: *const moert_engine) -> i32;
}
extern "C" {
    pub fn moert_engine_graph_safe(engine: *const moert_engine) -> i32;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_graph_needs {
    pub struct_size: u64,
    pub capturable: i32,
    pub eager_every: i32,
    pub obstacle: *const ::std::os::raw::c_char,
    pub max_rows: i64,
}
extern "C" {
    pub fn moert_graph_needs_init(needs: *mut moert_graph_needs, size: u64);
}
extern "C" {
    pub fn moert_engine_graph_needs(
        engine: *const moert_engine,
        needs: *mut moert_graph_needs,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_now_ns(engine: *const moert_engine) -> i64;
}
extern "C" {
    pub fn moert_engine_close_trace(
        engine: *mut moert_engine,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_memory {
    pub struct_size: u64,
    pub budget_bytes: i64,
    pub minimum_bytes: i64,
    pub constant_bytes: i64,
    pub table_bytes: i64,
    pub workspace_bytes: i64,
    pub block_bytes: i64,
    pub slots: i64,
    pub low_block_bytes: i64,
    pub low_slots: i64,
    pub spare_slots: i64,
    pub own_bytes: i64,
    pub total_experts: i64,
    pub all_bytes: i64,
    pub policy_bytes: i64,
    pub pinned_bytes: i64,
}
extern "C" {
    pub fn moert_memory_init(memory: *mut moert_memory, size: u64);
}
extern "C" {
    pub fn moert_memory_plan(
        source: *const moert_source,
        options: *const moert_engine_options,
        memory: *mut moert_memory,
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
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_step {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CUstream_st {
    _unused: [u8; 0],
}
pub type moert_stream = *mut CUstream_st;
pub type moert_predict_next = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        layer: i32,
        partial: *const moert_tensor,
        next_input: *const moert_tensor,
    ) -> moert_code,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_step_options {
    pub struct_size: u64,
    pub rows: i64,
    pub phase: moert_phase,
    pub request_ids: *const i64,
    pub stream: moert_stream,
    pub user_data: *mut ::core::ffi::c_void,
    pub predict_next: moert_predict_next,
    pub token_ids: *const i32,
}
extern "C" {
    pub fn moert_step_options_init(options: *mut moert_step_options, size: u64);
}
extern "C" {
    pub fn moert_step_begin(
        engine: *mut moert_engine,
        options: *const moert_step_options,
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
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_routing {
    pub struct_size: u64,
    pub ids: moert_tensor,
    pub weights: moert_tensor,
    pub scores: moert_tensor,
    pub next_scores: moert_tensor,
    pub used_ids: moert_tensor,
    pub times: *const moert_call_times,
    pub idle_before_ns: i64,
}
extern "C" {
    pub fn moert_routing_init(routing: *mut moert_routing, size: u64);
}
extern "C" {
    pub fn moert_layer_forward(
        step: *mut moert_step,
        layer: i32,
        x: *const moert_tensor,
        routing: *const moert_routing,
        out: *const moert_tensor,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_call {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_completion {
    pub struct_size: u64,
    pub eventfd: i32,
    pub user_data: *mut ::core::ffi::c_void,
    pub done: ::core::option::Option<
        unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void, code: moert_code),
    >,
}
extern "C" {
    pub fn moert_completion_init(completion: *mut moert_completion, size: u64);
}
extern "C" {
    pub fn moert_layer_begin(
        step: *mut moert_step,
        layer: i32,
        x: *const moert_tensor,
        routing: *const moert_routing,
        out: *const moert_tensor,
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
pub struct moert_lease {
    _unused: [u8; 0],
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
pub struct moert_fetch {
    pub struct_size: u64,
    pub ids: moert_tensor,
    pub weights: moert_tensor,
    pub next_scores: moert_tensor,
    pub hidden: moert_tensor,
    pub slot_ids: moert_tensor,
    pub cpu_rows: moert_tensor,
    pub any_slot: i64,
}
extern "C" {
    pub fn moert_fetch_init(fetch: *mut moert_fetch, size: u64);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_slots {
    pub struct_size: u64,
    pub base: [*const ::core::ffi::c_void; 8usize],
    pub stride: [i64; 8usize],
    pub bytes: [i64; 8usize],
    pub slot_of_expert: *const i32,
    pub slots: i64,
    pub parts: i64,
    pub device_slot_of_expert: *const i32,
}
extern "C" {
    pub fn moert_slots_init(slots: *mut moert_slots, size: u64);
}
extern "C" {
    pub fn moert_layer_fetch(
        step: *mut moert_step,
        layer: i32,
        fetch: *const moert_fetch,
        slots: *mut moert_slots,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_cpu_rows_take(
        step: *mut moert_step,
        layer: i32,
        rows: *const moert_tensor,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_slots_release(
        step: *mut moert_step,
        layer: i32,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_layer_copy(
        step: *mut moert_step,
        layer: i32,
        experts: *const i32,
        num_experts: i64,
        to: *mut ::core::ffi::c_void,
        slots: *mut moert_slots,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_cpu_multiply(
        step: *mut moert_step,
        layer: i32,
        experts: *const i32,
        pairs: *const i64,
        num_experts: i64,
        x: *const moert_tensor,
        row_of: *const i32,
        rows: *const moert_tensor,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
pub const MOERT_ABSENT: moert_residency_values = 0;
pub const MOERT_ARRIVING: moert_residency_values = 1;
pub const MOERT_RESIDENT_LOW: moert_residency_values = 2;
pub const MOERT_RESIDENT_HIGH: moert_residency_values = 3;
pub type moert_residency_values = ::std::os::raw::c_uint;
extern "C" {
    pub fn moert_engine_residency(
        engine: *const moert_engine,
        layer: i32,
        states: *mut u8,
        count: i64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_engine_prefetch(
        engine: *mut moert_engine,
        layer: i32,
        experts: *const i32,
        count: i64,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_stats {
    pub struct_size: u64,
    pub budget_bytes: i64,
    pub peak_bytes: i64,
    pub lookups: i64,
    pub hits_resident: i64,
    pub hits_prefetched: i64,
    pub late: i64,
    pub loads: i64,
    pub prefetches: i64,
    pub bytes_loaded: i64,
    pub evictions: i64,
    pub stalled_ns: i64,
    pub substituted: i64,
    pub low_answers: i64,
    pub policy_fallbacks: i64,
    pub cpu_computed: i64,
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
    pub fn moert_metrics_visit(
        engine: *const moert_engine,
        visit: ::core::option::Option<
            unsafe extern "C" fn(
                user_data: *mut ::core::ffi::c_void,
                name: *const ::std::os::raw::c_char,
                value: f64,
            ),
        >,
        user_data: *mut ::core::ffi::c_void,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
extern "C" {
    pub fn moert_metrics_prometheus(
        engine: *const moert_engine,
        label: *const ::std::os::raw::c_char,
        buffer: *mut ::std::os::raw::c_char,
        buffer_bytes: u64,
        needed: *mut u64,
        error: *mut *mut moert_error,
    ) -> moert_code;
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
pub struct moert_strategy_params {
    _unused: [u8; 0],
}
extern "C" {
    pub fn moert_strategy_params_get(
        params: *mut moert_strategy_params,
        key: *const ::std::os::raw::c_char,
    ) -> *const ::std::os::raw::c_char;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct moert_strategy {
    pub struct_size: u64,
    pub base: *const ::std::os::raw::c_char,
    pub policies: *mut moert_policies,
}
pub type moert_strategy_factory = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        params: *mut moert_strategy_params,
        strategy: *mut moert_strategy,
        failure: *mut moert_failure,
    ) -> moert_code,
>;
extern "C" {
    pub fn moert_strategy_register(
        info: *const moert_strategy_info,
        factory: moert_strategy_factory,
        user_data: *mut ::core::ffi::c_void,
        error: *mut *mut moert_error,
    ) -> moert_code;
}
