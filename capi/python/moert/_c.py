"""moert.h for ctypes: structs, constants, prototypes. Nothing here decides anything."""
import ctypes as c
import os
import pathlib

CANCELLED, INVALID_ARGUMENT, INTERNAL, DATA_LOSS = -1, -3, -13, -15
F32, BF16, F16, U8, I32 = 0, 1, 2, 4, 5
DTYPES = {"float32": F32, "bfloat16": BF16, "float16": F16}
TORCH_DTYPES = {F32: "torch.float32", BF16: "torch.bfloat16", F16: "torch.float16",
                U8: "torch.uint8", I32: "torch.int32"}
HOST, DEVICE = 0, 1
PHASES = {"prefill": 0, "decode": 1}
BACKENDS = {"auto": 0, "cpu": 1, "cuda": 2}
OPEN_MODES = {"pack_if_there": 0, "pack": 1, "in_place": 2}
CLOCK_WALL, CLOCK_VIRTUAL = 0, 1
NUMERICS = {"bf16": 0, "f32": 1, "int8": 2, "fp8": 3}
ROUTINGS = {"softmax_topk": 0, "topk_softmax": 1, "sigmoid_grouped": 2, "sparsemixer": 3,
            "sqrt_softplus_grouped": 4, "topk_sigmoid": 5, "external": 6}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu2": 3}
MAX_PARTS = 8
PARTS = ("gate_proj", "up_proj", "down_proj", "router", "selection_bias", "shared_gate", "record",
         "logit_bias", "expert_scales", "hash_experts", "gate_bias", "up_bias", "down_bias")


class _Struct(c.Structure):
    """Refuses a number that ctypes would cut to the size of its field."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if isinstance(value, int) and getattr(self, name) not in (value, None):
            raise OverflowError(f"{name} is {value}, which is no number of its size")


def _struct(name, *fields):
    """A struct of moert.h: struct_size first, then `fields` as "type name name ..." lines."""
    types = {"i32": c.c_int32, "i64": c.c_int64, "u64": c.c_uint64, "f32": c.c_float,
             "f64": c.c_double, "ptr": c.c_void_p, "str": c.c_char_p}
    members = [("struct_size", c.c_uint64)]
    for line in fields:
        kind, *names = line.split()
        members += [(n, types[kind]) for n in names]
    return type(name, (_Struct,), {"_fields_": members})


StrategyInfo = _struct("StrategyInfo", "str name summary keys")
LayerSpec = _struct(
    "LayerSpec", "i64 hidden intermediate shared_intermediate",
    "i32 num_experts model_layer activation shared_gate",
    "i32 routing top_k renormalize selection_bias num_groups top_groups",
    "f32 scaling sparsemixer_eps",
    "i32 logit_bias weight_input expert_scales hash_vocab ungated expert_bias",
    "f32 activation_alpha activation_limit up_offset", "i32 reserved")
OpenOptions = _struct("OpenOptions", "str cache_dir", "ptr user_data log progress",
                      "i32 widen mode")


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("rows", c.c_int64), ("cols", c.c_int64),
                ("row_stride", c.c_int64), ("dtype", c.c_int32), ("place", c.c_int32)]

    @classmethod
    def of(cls, address, rows, cols, dtype):
        """Contiguous, in host memory. The address is borrowed."""
        return cls(address, rows, cols, cols, dtype, 0)


class Read(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("layer", c.c_int32), ("expert", c.c_int32),
                ("part", c.c_int32), ("version", c.c_int32), ("first_row", c.c_int64),
                ("dst", Tensor)]


ReadCallback = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(Read), c.c_void_p)
DestroyCallback = c.CFUNCTYPE(None, c.c_void_p)


class SourceCallbacks(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("weights_dtype", c.c_int32),
                ("schemes", c.c_char_p), ("user_data", c.c_void_p), ("read", ReadCallback),
                ("pinned_record", c.c_void_p), ("destroy", DestroyCallback)]


EngineOptions = _struct(
    "EngineOptions", "str strategy", "ptr policies", "i64 budget_bytes", "f64 budget_fraction",
    "i64 host_budget_bytes max_tokens_per_forward", "ptr allocator",
    "i32 backend device numerics io_threads threads clock", "str cpus kernels profile",
    "f64 link_gbps", "ptr thread_pool logger trace_sink", "str trace_path",
    "ptr shard open_user_data open_progress", "i64 numa_node", "str timeline_path",
    "i64 trace_replace", "str promise")
Shard = _struct("Shard", "i64 first_expert num_experts", "ptr expert_list",
                "i64 expert_list_size first_channel num_channels shared_experts")
Memory = _struct(
    "Memory", "i64 budget_bytes minimum_bytes constant_bytes table_bytes workspace_bytes",
    "i64 block_bytes slots low_block_bytes low_slots spare_slots own_bytes total_experts",
    "i64 all_bytes policy_bytes pinned_bytes")
GraphNeeds = _struct("GraphNeeds", "i32 capturable eager_every", "str obstacle", "i64 max_rows")
PredictNext = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.POINTER(Tensor), c.POINTER(Tensor))
Progress = c.CFUNCTYPE(None, c.c_void_p, c.c_int64, c.c_int64)
VisitMetric = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p, c.c_double)


ProbeInfo = _struct("ProbeInfo", "i32 cpus cuda_usable", "i64 memory_bytes memory_available_bytes",
                    "str kernels schemes cuda_status")


class Matrix(c.Structure):
    _fields_ = [("scheme", c.c_char_p)] + [(name, c.c_int64) for name in (
        "rows", "k", "padded_rows", "padded_k", "group", "weight_offset", "weight_bytes",
        "scale_offset", "scale_bytes")]


class RecordInfo(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("version", c.c_char_p), ("bytes", c.c_int64),
                ("hadamard", c.c_int32), ("gate", Matrix), ("up", Matrix), ("down", Matrix)]


class StepOptions(_Struct):
    _fields_ = [("struct_size", c.c_uint64), ("rows", c.c_int64), ("phase", c.c_int32),
                ("request_ids", c.c_void_p), ("stream", c.c_void_p), ("user_data", c.c_void_p),
                ("predict_next", PredictNext), ("token_ids", c.c_void_p)]


class Routing(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("ids", Tensor), ("weights", Tensor),
                ("scores", Tensor), ("next_scores", Tensor), ("used_ids", Tensor),
                ("times", c.c_void_p), ("idle_before_ns", c.c_int64)]


ReadPart = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32, c.c_int32, c.c_int32, c.c_void_p,
                       c.c_int64, c.c_void_p)
OpaquePart = _struct("OpaquePart", "i64 bytes alignment stride_multiple", "ptr memory",
                     "i64 offset stride", "i32 layer file", "i64 zeros")


class OpaqueOptions(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("format", c.c_char_p), ("files", c.c_void_p),
                ("num_files", c.c_int64), ("user_data", c.c_void_p), ("read", ReadPart),
                ("gates", ReadCallback), ("destroy", DestroyCallback),
                ("product", c.c_void_p)]


class Fetch(c.Structure):
    _fields_ = [("struct_size", c.c_uint64)] + [(name, Tensor) for name in (
        "ids", "weights", "next_scores", "hidden", "slot_ids", "cpu_rows")] + [
            ("any_slot", c.c_int64)]


class Slots(c.Structure):
    _fields_ = [("struct_size", c.c_uint64), ("base", c.c_void_p * MAX_PARTS),
                ("stride", c.c_int64 * MAX_PARTS), ("bytes", c.c_int64 * MAX_PARTS),
                ("slot_of_expert", c.POINTER(c.c_int32)), ("slots", c.c_int64),
                ("parts", c.c_int64), ("device_slot_of_expert", c.c_void_p)]


Stats = _struct(
    "Stats", "i64 budget_bytes peak_bytes lookups hits_resident hits_prefetched late",
    "i64 loads prefetches bytes_loaded evictions stalled_ns",
    "i64 substituted low_answers policy_fallbacks cpu_computed")

# Each struct's name in moert.h, for its _init function.
_NAMES = {StrategyInfo: "strategy_info", LayerSpec: "layer_spec", OpenOptions: "open_options",
          SourceCallbacks: "source_callbacks", EngineOptions: "engine_options", Memory: "memory",
          StepOptions: "step_options", Routing: "routing", Stats: "stats",
          Shard: "shard", OpaquePart: "opaque_part", OpaqueOptions: "opaque_options",
          Fetch: "fetch", Slots: "slots", GraphNeeds: "graph_needs", ProbeInfo: "probe_info", RecordInfo: "record_info"}

# name: result, arguments (without the error object, which functions that return a code have last).
_FUNCTIONS = {
    "source_open": "code str ptr out", "source_open_pack": "code str out",
    "source_create": "code str ptr u64 ptr out",
    "source_create_opaque": "code str ptr u64 ptr u64 ptr out", "source_destroy": "none ptr",
    "source_layer_count": "i32 ptr", "source_layer": "code ptr i32 ptr",
    "source_name": "str ptr", "source_version_count": "i32 ptr",
    "source_record": "code ptr i32 i32 i32 ptr",
    "engine_create": "code ptr ptr out", "engine_destroy": "none ptr",
    "engine_set_budget": "code ptr i64 f64", "engine_memory": "code ptr ptr",
    "engine_layer_count": "i32 ptr", "engine_layer": "code ptr i32 ptr", "engine_exact": "i32 ptr",
    "engine_promise": "str ptr",
    "engine_backend": "i32 ptr", "engine_graph_safe": "i32 ptr", "probe": "code ptr",
    "engine_graph_needs": "code ptr ptr",
    "engine_strategy": "str ptr", "engine_close_trace": "code ptr", "engine_stats": "code ptr ptr",
    "engine_prefetch": "code ptr i32 ptr i64", "memory_plan": "code ptr ptr ptr",
    "engine_residency": "code ptr i32 ptr i64", "metrics_visit": "code ptr visit ptr",
    "step_begin": "code ptr ptr out", "step_cancel": "code ptr", "step_end": "code ptr",
    "layer_forward": "code ptr i32 ptr ptr ptr", "shards_check": "code ptr ptr i64",
    "layer_fetch": "code ptr i32 ptr ptr", "slots_release": "code ptr i32",
    "strategy_count": "i32", "strategy_at": "code i32 ptr", "version_string": "str",
    "code_name": "str i32", "error_message": "str ptr", "error_origin": "str ptr",
    "error_destroy": "none ptr", "failure_set": "none ptr str",
}


def _path():
    """libmoert.so: MOERT_LIBRARY, the wheel's own, or where the dynamic linker finds it."""
    own = pathlib.Path(__file__).with_name("libmoert.so")
    return os.environ.get("MOERT_LIBRARY") or (str(own) if own.exists() else "libmoert.so.0")


def load():
    library = c.CDLL(PATH)
    types = {"i32": c.c_int32, "i64": c.c_int64, "u64": c.c_uint64, "f64": c.c_double,
             "ptr": c.c_void_p, "str": c.c_char_p, "out": c.POINTER(c.c_void_p), "none": None,
             "code": c.c_int32, "visit": VisitMetric}
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


PATH = _path()
lib = load()


def init(kind):
    """A struct with the library's defaults."""
    value = kind()
    getattr(lib, f"moert_{_NAMES[kind]}_init")(c.byref(value), c.sizeof(value))
    return value
