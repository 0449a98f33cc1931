#include "host/cuda/cublas.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <library_types.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "util/cuda_api.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

using gpu::Buffer;

// Names of cublas_api.h, which not every toolkit installation has; stable since cuBLAS 11.
using Handle = void*;
constexpr int kSuccess = 0;
constexpr int kOpN = 0, kOpT = 1;
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;

// NVIDIA advises this for sm_90; with a workspace of its own a handle allocates nothing later.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

struct Library {
  void* file = nullptr;
  std::string name;
  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*set_stream)(Handle, CUstream_st*) = nullptr;
  int (*set_workspace)(Handle, void*, size_t) = nullptr;
  int (*gemm_ex)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType_t, int,
                 const void*, cudaDataType_t, int, const void*, void*, cudaDataType_t, int, int,
                 int) = nullptr;
};

/// Loaded once a process and kept: cuBLAS does not survive being unloaded.
absl::StatusOr<const Library*> Load() {
  static const absl::StatusOr<Library> loaded = []() -> absl::StatusOr<Library> {
    Library lib;
    std::vector<std::string> names = {fmt::format("libcublas.so.{}", CUDART_VERSION / 1000)};
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (name != names[0]) names.push_back(name);
    }
    for (const std::string& name : names) {
      lib.file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      lib.name = name;
      if (lib.file != nullptr) break;
    }
    if (lib.file == nullptr) {
      return absl::NotFoundError(
          fmt::format("cuBLAS was not found: none of {} could be loaded (LD_LIBRARY_PATH names "
                      "further folders)",
                      fmt::join(names, ", ")));
    }
    const auto find = [&](const char* symbol, auto* to) -> absl::Status {
      void* found = dlsym(lib.file, symbol);
      if (found == nullptr) {
        return absl::NotFoundError(fmt::format("{} has no {}", lib.name, symbol));
      }
      *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(found);
      return absl::OkStatus();
    };
    MOERT_RETURN_IF_ERROR(find("cublasCreate_v2", &lib.create));
    MOERT_RETURN_IF_ERROR(find("cublasDestroy_v2", &lib.destroy));
    MOERT_RETURN_IF_ERROR(find("cublasSetStream_v2", &lib.set_stream));
    MOERT_RETURN_IF_ERROR(find("cublasSetWorkspace_v2", &lib.set_workspace));
    MOERT_RETURN_IF_ERROR(find("cublasGemmEx", &lib.gemm_ex));
    return lib;
  }();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

absl::Status Check(int status, const char* what) {
  if (status == kSuccess) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} failed with status {}", what, status));
}

class LoadedCublas final : public Cublas {
 public:
  explicit LoadedCublas(const Library* library) : library_(library) {}
  ~LoadedCublas() override {
    if (handle_ != nullptr) library_->destroy(handle_);
  }

  absl::Status Init(CUstream_st* stream) {
    MOERT_ASSIGN_OR_RETURN(workspace_, Buffer::Device(kWorkspaceBytes));
    MOERT_RETURN_IF_ERROR(Check(library_->create(&handle_), "cublasCreate"));
    // In this order: setting the stream resets the workspace.
    MOERT_RETURN_IF_ERROR(Check(library_->set_stream(handle_, stream), "cublasSetStream"));
    return Check(library_->set_workspace(handle_, workspace_.data(), kWorkspaceBytes),
                 "cublasSetWorkspace");
  }

  absl::Status Multiply(const DenseGemm& g) override {
    // Row-major y = x W^T is column-major y^T = W x^T.
    const float one = 1, beta = g.accumulate ? 1 : 0;
    return Check(library_->gemm_ex(handle_, kOpT, kOpN, g.out, g.rows, g.in, &one, g.w, CUDA_R_16BF,
                                   g.in, g.x, CUDA_R_16BF, g.in, &beta, g.y, CUDA_R_32F, g.out,
                                   kCompute32F, kDefaultAlgorithm),
                 "cublasGemmEx");
  }

  absl::Status MultiplyF32(const float* w, int64_t out, int64_t in, const float* x, int64_t rows,
                           float* y) override {
    if (std::max({out, in, rows}) > INT32_MAX) {
      return absl::InvalidArgumentError(
          fmt::format("a product of {} rows by {} x {} is too large", rows, out, in));
    }
    const auto columns = static_cast<int>(out), inputs = static_cast<int>(in);
    const float one = 1, zero = 0;
    return Check(library_->gemm_ex(handle_, kOpT, kOpN, columns, static_cast<int>(rows), inputs,
                                   &one, w, CUDA_R_32F, inputs, x, CUDA_R_32F, inputs, &zero, y,
                                   CUDA_R_32F, columns, kCompute32F, kDefaultAlgorithm),
                 "cublasGemmEx");
  }

  const std::string& library() const override { return library_->name; }

 private:
  const Library* const library_;
  Handle handle_ = nullptr;
  Buffer workspace_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Cublas>> Cublas::Open(CUstream_st* stream) {
  MOERT_ASSIGN_OR_RETURN(const Library* library, Load());
  auto cublas = std::make_unique<LoadedCublas>(library);
  MOERT_RETURN_IF_ERROR(cublas->Init(stream));
  return cublas;
}

}  // namespace moert::host
