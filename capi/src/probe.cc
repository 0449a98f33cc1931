#include <unistd.h>

#include <string>

#include "absl/strings/str_join.h"
#include "base/thread_pool.h"
#include "guard.h"
#include "moert/backend.h"
#include "moert/mixed_group_gemm.h"
#include "moert/scheme.h"
#include "moert/tools/machine.h"
#include "struct_io.h"

using namespace moert::capi;

extern "C" {

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
    const moert::MemoryLimits memory = moert::ReadMemoryLimits();
    value.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    value.memory_available_bytes = memory.usable();
    value.kernels = kernels->c_str();
    static const std::string* const schemes = new std::string(absl::StrJoin(
        moert::Scheme::All(), ",",
        [](std::string* out, const moert::Scheme& scheme) { out->append(scheme.Name()); }));
    value.schemes = schemes->c_str();
    return WriteStruct(value, info, "info");
  });
}

}  // extern "C"
