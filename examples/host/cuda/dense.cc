#include "host/cuda/dense.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "host/cuda/random_kernel.h"
#include "moert/offline/linear_weight.h"
#include "util/status_macros.h"

namespace moert::host {

using gpu::Buffer;

absl::StatusOr<Buffer> ToDevice(const std::vector<float>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  MOERT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Device(bytes));
  RETURN_IF_CUDA_ERROR(
      cudaMemcpy(buffer.data(), values.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  return buffer;
}

absl::StatusOr<DeviceMatrix> DeviceMatrix::Load(const Checkpoint& checkpoint,
                                                const QuantizationConfig& form,
                                                const std::vector<Part>& parts, int64_t in) {
  DeviceMatrix m;
  m.in_ = in;
  bool biased = false;
  for (const Part& part : parts) {
    m.out_ += part.out;
    biased = biased || part.bias;
  }
  MOERT_ASSIGN_OR_RETURN(m.weights_, Buffer::Device(m.out_ * in * 2));
  std::byte* to = m.weights_.data();
  const int64_t rows_at_once = std::max<int64_t>(1, (int64_t{16} << 20) / in);
  std::vector<uint16_t> rows;
  std::vector<float> bias;
  std::optional<LinearWeight> weight;
  std::string opened;
  for (const Part& part : parts) {
    if (part.name != opened) {
      MOERT_ASSIGN_OR_RETURN(
          weight, LinearWeight::Open(checkpoint, form, part.name, part.stored_rows(), in));
      opened = part.name;
    }
    for (int64_t row = 0; row < part.out; row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, part.out - row);
      rows.resize(count * in);
      MOERT_RETURN_IF_ERROR(ReadRows(*weight, part, in, row, count, absl::MakeSpan(rows)));
      RETURN_IF_CUDA_ERROR(cudaMemcpy(to, rows.data(), rows.size() * 2, cudaMemcpyHostToDevice));
      to += rows.size() * 2;
    }
    if (!biased) continue;
    std::vector<float> b(part.out);  // zeros where a part has none
    if (part.bias) {
      MOERT_ASSIGN_OR_RETURN(b, ReadBias(checkpoint, part));
    }
    bias.insert(bias.end(), b.begin(), b.end());
  }
  if (!bias.empty()) {
    MOERT_ASSIGN_OR_RETURN(m.bias_, ToDevice(bias));
  }
  return m;
}

absl::StatusOr<DeviceMatrix> DeviceMatrix::FromHost(const std::vector<uint16_t>& weights,
                                                    int64_t out, int64_t in) {
  DeviceMatrix m;
  m.in_ = in;
  m.out_ = out;
  MOERT_ASSIGN_OR_RETURN(m.weights_, Buffer::Device(out * in * 2));
  RETURN_IF_CUDA_ERROR(
      cudaMemcpy(m.weights_.data(), weights.data(), weights.size() * 2, cudaMemcpyHostToDevice));
  return m;
}

absl::StatusOr<DeviceMatrix> DeviceMatrix::Random(int64_t out, int64_t in, uint64_t seed) {
  DeviceMatrix m;
  m.in_ = in;
  m.out_ = out;
  MOERT_ASSIGN_OR_RETURN(m.weights_, Buffer::Device(out * in * 2));
  // The variance is 1 / in.
  const float limit = std::sqrt(3.0f / static_cast<float>(in));
  RETURN_IF_CUDA_ERROR(
      LaunchRandom(reinterpret_cast<uint16_t*>(m.weights_.data()), out * in, limit, seed, nullptr));
  RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(nullptr));
  return m;
}

FewRowsProduct DeviceMatrix::FewRows(int64_t rows, float* y) const {
  FewRowsProduct product;
  product.w = weights();
  product.rows = static_cast<int32_t>(rows);
  product.in = static_cast<int32_t>(in_);
  product.out = static_cast<int32_t>(out_);
  product.y = y;
  return product;
}

absl::StatusOr<std::unique_ptr<DenseProducts>> DenseProducts::Create(CUstream_st* stream,
                                                                     DenseKernels kernels) {
  auto products = std::make_unique<DenseProducts>();
  products->stream_ = stream;
  products->kernels_ = kernels;
  if (kernels == DenseKernels::kOwn) return products;
  auto cublas = Cublas::Open(stream);
  if (cublas.ok()) {
    products->cublas_ = *std::move(cublas);
  } else if (kernels == DenseKernels::kAuto) {
    products->note_ = std::string(cublas.status().message()) +
                      "; the dense parts run without it, prompts and batches slowly";
  } else {
    return cublas.status();
  }
  return products;
}

absl::Status DenseProducts::Multiply(const DeviceMatrix& w, const uint16_t* x, int64_t rows,
                                     float* y, bool accumulate) {
  if (TakesFew(rows, w.in())) {
    FewRowsProduct product = w.FewRows(rows, y);
    product.x = x;
    product.accumulate = accumulate;
    RETURN_IF_CUDA_ERROR(LaunchFewRows(product, stream_));
    return absl::OkStatus();
  }
  DenseGemm gemm;
  gemm.x = x;
  gemm.w = w.weights();
  gemm.y = y;
  gemm.rows = static_cast<int32_t>(rows);
  gemm.in = static_cast<int32_t>(w.in());
  gemm.out = static_cast<int32_t>(w.out());
  gemm.accumulate = accumulate;
  if (cublas_ != nullptr) return cublas_->Multiply(gemm);
  RETURN_IF_CUDA_ERROR(LaunchDenseGemm(gemm, stream_));
  return absl::OkStatus();
}

}  // namespace moert::host
