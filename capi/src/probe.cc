#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_join.h"
#include "base/thread_pool.h"
#include "guard.h"
#include "moert/backend.h"
#include "moert/mixed_group_gemm.h"
#include "moert/scheme.h"
#include "struct_io.h"

namespace moert::capi {
namespace {

/// MemAvailable of /proc/meminfo, or what is free where there is none.
int64_t AvailableMemory() {
  int64_t kib = -1;
  if (std::FILE* file = std::fopen("/proc/meminfo", "re")) {
    char line[256];
    while (kib < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
      long long value = 0;
      if (std::sscanf(line, "MemAvailable: %lld kB", &value) == 1) kib = value;
    }
    std::fclose(file);
  }
  if (kib >= 0) return kib * 1024;
  return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

}  // namespace
}  // namespace moert::capi

using namespace moert::capi;

extern "C" {

void moert_probe_info_init(moert_probe_info* info, uint64_t size) {
  InitStruct(info, size, moert_probe_info{});
}

moert_code moert_probe(moert_probe_info* info, moert_error** error) {
  return Guard(__func__, error, [&]() -> absl::Status {
    static const std::string* const kernels =
        new std::string(absl::StrJoin(moert::MixedGroupGemm::KernelNames(), ","));
    moert_probe_info value{};
    value.cpus = moert::UsableCpus();
    static const absl::Status* const cuda = new absl::Status(moert::CudaStatus());
    static const std::string* const cuda_text =
        new std::string(cuda->ok() ? "OK" : std::string(cuda->message()));
    value.cuda_usable = cuda->ok();
    value.cuda_status = cuda_text->c_str();
    value.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    value.memory_available_bytes = AvailableMemory();
    value.kernels = kernels->c_str();
    static const std::string* const schemes = new std::string(absl::StrJoin(
        moert::Scheme::All(), ",",
        [](std::string* out, const moert::Scheme& scheme) { out->append(scheme.Name()); }));
    value.schemes = schemes->c_str();
    return WriteStruct(value, info, "info");
  });
}

}  // extern "C"
