"""moert.h for ctypes: structs, constants, prototypes. Nothing here decides anything."""
import ctypes as c
import os

CANCELLED, INVALID_ARGUMENT, INTERNAL, DATA_LOSS = -1, -3, -13, -15
F32, BF16, F16 = 0, 1, 2
PREFILL, DECODE = 0, 1
BACKEND_CPU = 1
CLOCK_WALL, CLOCK_VIRTUAL = 0, 1
NUMERICS = {"bf16": 0, "f32": 1, "int8": 2}
ROUTINGS = {"softmax_topk": 0, "topk_softmax": 1, "sigmoid_grouped": 2, "sparsemixer": 3}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
PARTS = ("gate_proj", "up_proj", "down_proj", "router", "selection_bias", "shared_gate")


def _struct(name, *fields):
    """A struct of moert.h: struct_size first, then `fields` as "type name name ..." lines."""
    types = {"i32": c.c_int32, "i64": c.c_int64, "u64": c.c_uint64, "f32": c.c_float,
             "f64": c.c_double, "ptr": c.c_void_p, "str": c.c_char_p}
    members = [("struct_size", c.c_uint64)]
    for line in fields:
        kind, *names = line.split()
        members += [(n, types[kind]) for n in names]
    return type(name, (c.Structure,), {"_fields_": members})


StrategyInfo = _struct("StrategyInfo", "str name summary keys")
LayerSpec = _struct(
    "LayerSpec", "i64 hidden intermediate shared_intermediate",
    "i32 model_layer num_experts top_k routing activation shared_gate renormalize selection_bias",
    "i32 num_groups top_groups", "f32 scaling sparsemixer_eps")
OpenOptions = _struct("OpenOptions", "str cache_dir", "ptr user_data log progress")
Read = _struct("Read", "i32 layer expert part version", "i64 first_row rows cols", "ptr dst",
               "u64 dst_bytes", "i32 dtype reserved0")
ReadCallback = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(Read), c.c_void_p)
DestroyCallback = c.CFUNCTYPE(None, c.c_void_p)


class SourceCallbacks(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("user_data", c.c_void_p), ("read", ReadCallback),
                ("destroy", DestroyCallback), ("schemes", c.c_char_p),
                ("weights_dtype", c.c_int32), ("reserved0", c.c_int32)]


EngineOptions = _struct(
    "EngineOptions", "str strategy", "i64 budget_bytes", "f64 budget_fraction",
    "i64 max_tokens_per_forward", "i32 numerics clock", "str profile", "f64 link_gbps", "u64 seed",
    "i32 threads io_threads", "str kernels", "i32 backend device", "i64 host_budget_bytes",
    "str cpus trace_path", "ptr policies thread_pool allocator logger")
Memory = _struct(
    "Memory", "i64 budget_bytes constant_bytes table_bytes workspace_bytes block_bytes slots",
    "i64 low_block_bytes low_slots spare_slots total_experts minimum_bytes")
PredictNext = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.POINTER(c.c_float), c.c_int64,
                          c.POINTER(c.c_float))


class StepInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("rows", c.c_int64), ("phase", c.c_int32),
                ("reserved0", c.c_int32), ("user_data", c.c_void_p),
                ("predict_next", PredictNext)]


Stats = _struct(
    "Stats", "i64 budget_bytes peak_bytes fixed_bytes pool_bytes lookups hits_resident",
    "i64 hits_prefetched late loads bytes_loaded evictions low_answers cpu_computed",
    "i64 prefetch_issued prefetch_useful prefetch_bytes prefetch_predicted prefetch_recalled slots",
    "i64 slots_substituted", "f64 mass mass_substituted worst_slot_share worst_mass_share",
    "i64 model_lookups model_hits promotions demotions deferred balance_load_ns balance_cpu_ns",
    "i64 policy_fallbacks stall_miss_ns stall_queue_ns stall_staging_ns stall_cpu_ns host_syncs",
    "i32 prefetch_disabled graph_captured", "i64 prefetch_active prefetch_top_score",
    "i64 predictions_resident_forward predictions_next_gate prefetch_cancelled",
    "i64 prefetch_recalled_in_window prefetch_disabled_steps slots_low", "f64 mass_low",
    "i64 low_loads upgrades fills prefetch_trials prefetch_switches")

# Of each struct its name in moert.h, for its _init function.
_NAMES = {StrategyInfo: "strategy_info", LayerSpec: "layer_spec", OpenOptions: "open_options",
          SourceCallbacks: "source_callbacks", EngineOptions: "engine_options", Memory: "memory",
          StepInfo: "step_info", Stats: "stats"}

# name: result, arguments (without the error object, which functions that return a code have last).
_FUNCTIONS = {
    "source_open": "code str ptr out", "source_open_pack": "code str out",
    "source_create": "code str ptr u64 ptr out", "source_destroy": "none ptr",
    "source_layer_count": "i32 ptr", "source_layer": "code ptr i32 ptr",
    "engine_create": "code ptr ptr out", "engine_destroy": "none ptr",
    "engine_set_budget": "code ptr i64 f64", "engine_memory": "code ptr ptr",
    "engine_layer_count": "i32 ptr", "engine_layer": "code ptr i32 ptr", "engine_exact": "i32 ptr",
    "engine_graph_safe": "i32 ptr",
    "engine_strategy": "str ptr", "engine_close_trace": "code ptr", "engine_stats": "code ptr ptr",
    "prefetch_hint": "code ptr i32 ptr i64", "plan": "code ptr ptr ptr",
    "residency": "code ptr i32 ptr i64",
    "step_begin": "code ptr ptr ptr ptr ptr out", "step_cancel": "code ptr", "step_end": "code ptr",
    "layer_forward": "code ptr i32 ptr i64 i32 i64 ptr ptr",
    "layer_forward_routed": "code ptr i32 ptr i64 i32 i64 ptr ptr i32 ptr ptr ptr",
    "strategy_count": "i32", "strategy_at": "code i32 ptr", "version_string": "str",
    "code_name": "str i32", "error_message": "str ptr", "error_origin": "str ptr",
    "error_destroy": "none ptr", "failure_set": "none ptr str",
}


def load():
    """libmoert.so: MOERT_LIBRARY, or where the dynamic linker finds it."""
    library = c.CDLL(os.environ.get("MOERT_LIBRARY", "libmoert.so.0"))
    types = {"i32": c.c_int32, "i64": c.c_int64, "u64": c.c_uint64, "f64": c.c_double,
             "ptr": c.c_void_p, "str": c.c_char_p, "out": c.POINTER(c.c_void_p), "none": None,
             "code": c.c_int32}
    for name, signature in _FUNCTIONS.items():
        result, *arguments = signature.split()
        function = getattr(library, "moert_" + name)
        function.restype = types[result]
        function.argtypes = [types[a] for a in arguments]
        if result == "code":
            function.argtypes = function.argtypes + [c.POINTER(c.c_void_p)]
    for name in _NAMES.values():
        function = getattr(library, f"moert_{name}_init")
        function.restype, function.argtypes = None, [c.c_void_p, c.c_uint64]
    return library


lib = load()


def init(kind):
    """A struct with the library's defaults."""
    value = kind()
    getattr(lib, f"moert_{_NAMES[kind]}_init")(c.byref(value), c.sizeof(value))
    return value
