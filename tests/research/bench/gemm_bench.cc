// Weights, routings and times of the measured layers.
#include "bench/gemm_bench.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "bench/gemm_graph.h"
#include "cli/workload/synthetic_experts.h"
#include "exec/cuda/cuda_api.h"
#include "kernels/cuda/few/group_gemm.h"

namespace moert::cli {
namespace {

constexpr int kWarmUp = 2;

/// Records of formats with made-up weights in device memory: a few of each format that differ, then
/// copies of these.
class MadeRecords {
 public:
  explicit MadeRecords(const std::vector<RecordLayout>& layouts)
      : layouts_(layouts), placed_(layouts.size()) {}

  absl::Status Place(int format, std::byte* to) {
    const RecordLayout& layout = layouts_[format];
    std::vector<const std::byte*>& placed = placed_[format];
    const std::byte* from = placed.size() < kDifferent ? nullptr : placed[next_++ % kDifferent];
    if (from == nullptr) {
      host_.resize(layout.bytes);
      FillRecord(layout, placed.size(), host_.data());
      from = host_.data();
      placed.push_back(to);
    }
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(to, from, static_cast<size_t>(layout.bytes), cudaMemcpyDefault));
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kDifferent = 4;
  const std::vector<RecordLayout>& layouts_;
  std::vector<std::vector<const std::byte*>> placed_;
  std::vector<std::byte> host_;
  size_t next_ = 0;
};

/// Experts of every token: drawn by popularity, without repetition.
std::vector<int32_t> DrawExperts(int tokens, int experts, int top_k, double zipf,
                                 std::mt19937_64* rng) {
  std::vector<int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), *rng);
  std::vector<double> popularity(experts);
  for (int e = 0; e < experts; ++e) popularity[e] = std::pow(e + 1.0, -zipf);
  std::discrete_distribution<int> draw(popularity.begin(), popularity.end());
  std::vector<int32_t> ids;
  for (int t = 0; t < tokens; ++t) {
    const size_t first = ids.size();
    while (ids.size() < first + top_k) {
      const int32_t e = order[draw(*rng)];
      if (std::find(ids.begin() + first, ids.end(), e) == ids.end()) ids.push_back(e);
    }
  }
  return ids;
}

}  // namespace

absl::Status GemmBench::Init(const PackVersion& version, const Buffer& copied) {
  copied_ = &copied;
  version_ = version;
  MOERT_RETURN_IF_ERROR(DescribeFormats());
  MOERT_ASSIGN_OR_RETURN(stream_, Stream::Create());
  for (Event& event : events_) {
    MOERT_ASSIGN_OR_RETURN(event, Event::Create());
  }
  return PlaceRecords();
}

absl::Status GemmBench::DescribeFormats() {
  for (const ExpertFormat& format : version_.formats) {
    MOERT_ASSIGN_OR_RETURN(const RecordLayout layout, ExpertRecordLayout(spec_, format));
    MOERT_ASSIGN_OR_RETURN(const cuda::DeviceFormat f,
                           cuda::MakeDeviceFormat(layout, fp8_ ? ActivationNumerics::kFp8
                                                               : ActivationNumerics::kBF16));
    layouts_.push_back(layout);
    device_formats_.push_back(f);
    prompt_formats_.Add(f);
    used_.x[f.gate.operand] = true;
    used_.x[cuda::PromptOperand(f.gate.operand)] = true;
    used_.wide_h |= f.down.operand != 0;
  }
  const auto bytes = static_cast<int64_t>(device_formats_.size() * sizeof(cuda::DeviceFormat));
  MOERT_ASSIGN_OR_RETURN(formats_, Buffer::Device(bytes));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(formats_.data(), device_formats_.data(), bytes, cudaMemcpyHostToDevice));
  return absl::OkStatus();
}

int GemmBench::FormatOf(int layer, int expert) const {
  if (version_.assignment.empty()) return 0;
  return version_.assignment[layer % version_.assignment.size()][expert];
}

absl::Status GemmBench::PlaceRecords() {
  std::vector<int64_t> begins;
  std::vector<cuda::ExpertHandle> handles;
  int64_t end = 0;
  for (int l = 0; l < layers_; ++l) {
    for (int e = 0; e <= spec_.num_experts; ++e) {
      begins.push_back(end);
      handles.push_back({});  // the last of a layer: no shared expert
      if (e == spec_.num_experts) continue;
      handles.back().format = FormatOf(l, e);
      end += RoundUp(layouts_[FormatOf(l, e)].bytes, kRecordAlignment);
    }
  }
  MOERT_ASSIGN_OR_RETURN(weights_, Buffer::Device(end));
  MadeRecords records(layouts_);
  for (size_t i = 0; i < handles.size(); ++i) {
    if (i % (spec_.num_experts + 1) == static_cast<size_t>(spec_.num_experts)) continue;
    std::byte* const record = weights_.data() + begins[i];
    handles[i].record = reinterpret_cast<const uint8_t*>(record);
    MOERT_RETURN_IF_ERROR(records.Place(handles[i].format, record));
  }
  const auto bytes = static_cast<int64_t>(handles.size() * sizeof(handles[0]));
  MOERT_ASSIGN_OR_RETURN(handles_, Buffer::Device(bytes));
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(handles_.data(), handles.data(), bytes, cudaMemcpyHostToDevice));
  return absl::OkStatus();
}

absl::Status GemmBench::Measure(int tokens, double zipf, GemmCudaCase* result) {
  MOERT_RETURN_IF_ERROR(Prepare(tokens, zipf, result));
  Graph tiles, products, layer;
  const auto all = [&](auto call) {
    return [this, call]() -> absl::Status {
      for (int l = 0; l < layers_; ++l) MOERT_RETURN_IF_ERROR((this->*call)(l));
      return absl::OkStatus();
    };
  };
  MOERT_RETURN_IF_ERROR(tiles.Capture(stream_.get(), all(&GemmBench::Tiles)));
  MOERT_RETURN_IF_ERROR(products.Capture(stream_.get(), all(&GemmBench::Products)));
  MOERT_RETURN_IF_ERROR(layer.Capture(stream_.get(), all(&GemmBench::Layer)));
  std::vector<double> copies, product_times, layer_times;
  for (int r = 0; r < kWarmUp + repeats_; ++r) {
    // The tiles are made before each measurement; meanwhile the host enqueues what is measured.
    MOERT_RETURN_IF_ERROR(tiles.Launch(stream_.get()));
    MOERT_RETURN_IF_ERROR(Mark(0));
    MOERT_RETURN_IF_ERROR(products.Launch(stream_.get()));
    MOERT_RETURN_IF_ERROR(Mark(1));
    MOERT_RETURN_IF_ERROR(layer.Launch(stream_.get()));
    MOERT_RETURN_IF_ERROR(Mark(2));
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(copied_->data() + kCopyBytes, copied_->data(),
                                               kCopyBytes, cudaMemcpyDeviceToDevice,
                                               stream_.get()));
    MOERT_RETURN_IF_ERROR(Mark(3));
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()));
    if (r < kWarmUp) continue;
    MOERT_ASSIGN_OR_RETURN(const double a, Between(0, 1));
    MOERT_ASSIGN_OR_RETURN(const double b, Between(1, 2));
    MOERT_ASSIGN_OR_RETURN(const double c, Between(2, 3));
    product_times.push_back(a / layers_);
    layer_times.push_back(b / layers_);
    copies.push_back(2e-3 * kCopyBytes / c);
  }
  result->products = SpreadOf(product_times);
  result->layer = SpreadOf(layer_times);
  result->copy_gbps = SpreadOf(copies);
  return absl::OkStatus();
}

absl::Status GemmBench::Prepare(int tokens, double zipf, GemmCudaCase* result) {
  prompt_device_ = cuda::FindPromptDevice();
  prompt_ = {};
  if (prompt_device_.form != cuda::PromptForm::kNone && products_ != "few") {
    prompt_ = cuda::PlanPrompt(prompt_device_, prompt_formats_, spec_, tokens, spec_.num_experts,
                               products_ == "prompts");
  }
  if (prompt_.any() && prompt_.others) {
    return absl::UnimplementedError("formats of which some have no kernel for prompts");
  }
  calls_.assign(layers_, {});
  const auto carve = [&](cuda::Carver* c) {
    shared_.Carve(spec_, tokens, used_, c);
    for (LayerBuffers& l : calls_) l.Carve(spec_, tokens, c);
  };
  cuda::Carver count;
  carve(&count);
  memory_ = Buffer();
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Device(count.used()));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemset(memory_.data(), 0, count.used()));
  cuda::Carver carver(memory_.data());
  carve(&carver);

  std::mt19937_64 rng(3);
  std::vector<float> x(tokens * spec_.hidden);
  for (float& v : x)
    v = Bf16ToF32(F32ToBf16(static_cast<float>(static_cast<int32_t>(rng())) * 0x1p-31f));
  MOERT_RETURN_IF_ERROR(UploadRows(x));
  rows_ = {shared_.x, static_cast<int32_t>(dtype_), tokens, static_cast<int32_t>(spec_.hidden),
           spec_.hidden};
  // Rows of bf16 are read as they are.
  prompt_x_ = dtype_ == DType::kBF16 && spec_.hidden % 64 == 0 && !prompt_.sums()
                  ? reinterpret_cast<const uint8_t*>(shared_.x)
                  : shared_.prompt_x;
  few_ = tokens <= cuda::kFewTokens && !prompt_.any();
  chooses_ =
      few_ && !used_.wide_h && cuda::ProductsChoose(tokens, spec_.routing.top_k, spec_.num_experts);
  MOERT_RETURN_IF_ERROR(Pack());
  MOERT_RETURN_IF_ERROR(DrawCalls(x, zipf, &rng, result));
  shares_ = cuda::GroupGemmShares();
  return absl::OkStatus();
}

absl::Status GemmBench::DrawCalls(const std::vector<float>& x, double zipf, std::mt19937_64* rng,
                                  GemmCudaCase* result) {
  const int tokens = rows_.rows, top_k = spec_.routing.top_k;
  const int64_t pairs = int64_t{tokens} * top_k;
  int64_t touched = 0, bytes = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    const LayerBuffers& l = calls_[layer];
    const std::vector<int32_t> ids = DrawExperts(tokens, spec_.num_experts, top_k, zipf, rng);
    std::vector<bool> seen(spec_.num_experts);
    for (const int32_t id : ids) seen[id] = true;
    for (int e = 0; e < spec_.num_experts; ++e) {
      if (!seen[e]) continue;
      ++touched;
      bytes += layouts_[FormatOf(layer, e)].bytes;
    }
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(l.ids, ids.data(), ids.size() * sizeof(ids[0]), cudaMemcpyHostToDevice));
    if (few_) MOERT_RETURN_IF_ERROR(UploadGate(x, ids, l.gate));
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGroup(l.ids, static_cast<int>(pairs), spec_.num_experts,
                                                 l.groups, stream_.get()));
  }
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()));
  result->tokens = tokens;
  result->zipf = zipf;
  result->experts = static_cast<double>(touched) / layers_;
  result->bytes = static_cast<double>(bytes) / layers_;
  result->flops = 6.0 * static_cast<double>(spec_.hidden * spec_.intermediate * pairs);
  return absl::OkStatus();
}

absl::Status GemmBench::UploadRows(const std::vector<float>& x) {
  std::vector<uint16_t> rounded;
  for (const float v : x) rounded.push_back(F32ToBf16(v));
  const bool narrow = dtype_ == DType::kBF16;
  const void* from = narrow ? static_cast<const void*>(rounded.data()) : x.data();
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(shared_.x, from, x.size() * (narrow ? 2 : 4), cudaMemcpyHostToDevice));
  return absl::OkStatus();
}

absl::Status GemmBench::UploadGate(const std::vector<float>& x, const std::vector<int32_t>& ids,
                                   float* to) const {
  const int64_t hidden = spec_.hidden;
  std::vector<float> gate(spec_.num_experts * hidden);
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* row = x.data() + static_cast<int64_t>(i) / spec_.routing.top_k * hidden;
    const float norm = std::inner_product(row, row + hidden, row, 0.0f);
    for (int64_t c = 0; c < hidden; ++c) gate[ids[i] * hidden + c] += row[c] / norm;
  }
  MOERT_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(to, gate.data(), gate.size() * sizeof(float), cudaMemcpyHostToDevice));
  return absl::OkStatus();
}

absl::Status GemmBench::Mark(int event) {
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(events_[event].get(), stream_.get()));
  return absl::OkStatus();
}

absl::StatusOr<double> GemmBench::Between(int from, int to) {
  float ms = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&ms, events_[from].get(), events_[to].get()));
  return 1e3 * static_cast<double>(ms);
}

}  // namespace moert::cli
