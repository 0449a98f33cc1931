// The _init functions of structs whose defaults are all zero, and of tensors. The other ones are
// next to their defaults.
#include "struct_io.h"

extern "C" {

#define MOERT_ZEROS(type) \
  void type##_init(type* out, uint64_t size) { moert::capi::InitStruct(out, size, type{}); }

MOERT_ZEROS(moert_allocator)
MOERT_ZEROS(moert_call_times)
MOERT_ZEROS(moert_expert_view)
MOERT_ZEROS(moert_fetch)
MOERT_ZEROS(moert_logger)
MOERT_ZEROS(moert_memory)
MOERT_ZEROS(moert_opaque_options)
MOERT_ZEROS(moert_open_options)
MOERT_ZEROS(moert_policies)
MOERT_ZEROS(moert_probe_info)
MOERT_ZEROS(moert_record_info)
MOERT_ZEROS(moert_routing)
MOERT_ZEROS(moert_slots)
MOERT_ZEROS(moert_stats)
MOERT_ZEROS(moert_strategy_info)
MOERT_ZEROS(moert_thread_pool)
MOERT_ZEROS(moert_trace_sink)

#undef MOERT_ZEROS

void moert_tensor_init(moert_tensor* tensor, void* data, int64_t rows, int64_t cols,
                       moert_dtype dtype) {
  if (tensor != nullptr) *tensor = {data, rows, cols, cols, dtype, MOERT_HOST};
}

}  // extern "C"
