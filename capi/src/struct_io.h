// Structs that cross the C ABI. They state their own size, only ever grow, and are copied up to the
// smaller of the caller's size and the library's.
#ifndef MOERT_CAPI_SRC_STRUCT_IO_H_
#define MOERT_CAPI_SRC_STRUCT_IO_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "guard.h"
#include "moert.h"

namespace moert::capi {

/// The size a struct had when it was first released; a smaller struct_size was never legal.
constexpr uint64_t FirstSize(const moert_probe_info*) { return 56; }
constexpr uint64_t FirstSize(const moert_strategy_info*) { return 32; }
constexpr uint64_t FirstSize(const moert_layer_spec*) { return 80; }
constexpr uint64_t FirstSize(const moert_open_options*) { return 40; }
constexpr uint64_t FirstSize(const moert_source_callbacks*) { return 56; }
constexpr uint64_t FirstSize(const moert_record_info*) { return 272; }
constexpr uint64_t FirstSize(const moert_engine_options*) { return 152; }
constexpr uint64_t FirstSize(const moert_policies*) { return 160; }
constexpr uint64_t FirstSize(const moert_thread_pool*) { return 40; }
constexpr uint64_t FirstSize(const moert_allocator*) { return 40; }
constexpr uint64_t FirstSize(const moert_logger*) { return 32; }
constexpr uint64_t FirstSize(const moert_trace_sink*) { return 48; }
constexpr uint64_t FirstSize(const moert_call_times*) { return 56; }
constexpr uint64_t FirstSize(const moert_memory*) { return 104; }
constexpr uint64_t FirstSize(const moert_step_options*) { return 56; }
constexpr uint64_t FirstSize(const moert_routing*) { return 224; }
constexpr uint64_t FirstSize(const moert_shard*) { return 64; }
constexpr uint64_t FirstSize(const moert_fetch*) { return 208; }
constexpr uint64_t FirstSize(const moert_slots*) { return 224; }
constexpr uint64_t FirstSize(const moert_opaque_part*) { return 64; }
constexpr uint64_t FirstSize(const moert_opaque_options*) { return 64; }
constexpr uint64_t FirstSize(const moert_completion*) { return 32; }
constexpr uint64_t FirstSize(const moert_expert_view*) { return 272; }
constexpr uint64_t FirstSize(const moert_stats*) { return 120; }
constexpr uint64_t FirstSize(const moert_graph_needs*) { return 24; }
constexpr uint64_t FirstSize(const void*) { return 0; }
template <typename T>
inline constexpr uint64_t kFirstSize = FirstSize(static_cast<const T*>(nullptr));

/// No real struct is this large: a larger size is an uninitialized value.
inline constexpr uint64_t kMostSize = 1 << 16;

template <typename T>
concept SizedStruct = std::is_standard_layout_v<T> && std::is_trivially_copyable_v<T> &&
                      (kFirstSize<T> > 0) &&
                      (kFirstSize<T> <= sizeof(T));

/// The body of an _init function: writes `defaults` into the caller's struct of `size` bytes, then
/// zeros.
template <SizedStruct T>
void InitStruct(T* out, uint64_t size, T defaults) {
  if (out == nullptr || size < sizeof(out->struct_size) || size > kMostSize) return;
  std::memset(static_cast<void*>(out), 0, size);
  std::memcpy(static_cast<void*>(out), &defaults, std::min<uint64_t>(size, sizeof(T)));
  out->struct_size = size;
}

template <SizedStruct T>
absl::Status CheckSize(const T& in, const char* name) {
  if (in.struct_size >= kFirstSize<T> && in.struct_size <= kMostSize) return absl::OkStatus();
  return Illegal(name, ".struct_size is ", in.struct_size, ", legal is ", kFirstSize<T>, " to ",
                 kMostSize, ": call its _init function");
}

/// Overwrites `value`, which holds defaults, with the caller's struct. Bytes beyond the library's
/// struct belong to a newer header and must be zero, because the library would ignore them.
template <SizedStruct T>
absl::Status ReadStruct(const T* in, const char* name, T* value) {
  if (in == nullptr) return Illegal(name, ": must not be NULL");
  if (absl::Status status = CheckSize(*in, name); !status.ok()) return status;
  const uint64_t size = in->struct_size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (uint64_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      return Illegal(name, ": byte ", i, " is set, but this library (", moert_version_string(),
                     ") knows only the first ", sizeof(T));
    }
  }
  std::memcpy(static_cast<void*>(value), bytes, std::min<uint64_t>(size, sizeof(T)));
  value->struct_size = sizeof(T);
  return absl::OkStatus();
}

/// Fills the caller's struct up to its size, and zeros members that are newer than this library.
template <SizedStruct T>
absl::Status WriteStruct(const T& value, T* out, const char* name) {
  if (out == nullptr) return Illegal(name, ": must not be NULL");
  if (absl::Status status = CheckSize(*out, name); !status.ok()) return status;
  InitStruct(out, out->struct_size, value);
  return absl::OkStatus();
}

/// Calls read(i, in) for each of `count` structs, whose stride is the size that the first one
/// states.
template <SizedStruct T, typename Read>
absl::Status ReadArray(const T* first, uint64_t count, const char* name, Read&& read) {
  const std::string zeroth = absl::StrCat(name, "[0]");
  if (absl::Status status = CheckSize(*first, zeroth.c_str()); !status.ok()) return status;
  const uint64_t stride = first->struct_size;
  if (stride % alignof(T) != 0) return Illegal(zeroth, ".struct_size is ", stride);
  const auto* bytes = reinterpret_cast<const unsigned char*>(first);
  for (uint64_t i = 0; i < count; ++i) {
    const auto* in = reinterpret_cast<const T*>(bytes + i * stride);
    if (in->struct_size != stride) {
      return Illegal(name, "[", i, "].struct_size is ", in->struct_size, ", that of ", zeroth,
                     " is ", stride);
    }
    if (absl::Status status = read(i, in); !status.ok()) return status;
  }
  return absl::OkStatus();
}

/// Converts a C++ struct to a C struct, and back: fields(c, cpp, visit) calls visit(c.x, cpp.x) for
/// every member that both have.
template <typename C, typename Fields, typename Cpp>
C MakeC(const Fields& fields, const Cpp& cpp) {
  C c{};
  c.struct_size = sizeof(c);
  fields(c, cpp, [](auto& to, const auto& from) {
    to = static_cast<std::remove_reference_t<decltype(to)>>(from);
  });
  return c;
}
template <typename Cpp, typename Fields, typename C>
Cpp MakeCpp(const Fields& fields, const C& c) {
  Cpp cpp;
  fields(c, cpp, [](const auto& from, auto& to) {
    to = static_cast<std::remove_reference_t<decltype(to)>>(from);
  });
  return cpp;
}

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_STRUCT_IO_H_
