// Grouped products on random experts, layer after layer in a CUDA graph. Every layer has weights of
// its own, together many times the second-level cache, and a routing of its own.
#include "cli/bench/gemm_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "base/checked_math.h"
#include "base/status_macros.h"
#include "cli/bench/cuda/probe_cuda_parts.h"
#include "exec/backend.h"
#include "exec/cuda/cuda_api.h"
#include "exec/cuda/device_format.h"
#include "exec/cuda/prompt_plan.h"
#include "fmt/format.h"
#include "kernels/cuda/group_gemm.h"
#include "kernels/cuda/prompt_gemm.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/rows.h"

namespace moert::cli {
namespace {

using cuda::Buffer;

constexpr int64_t kPatternBytes = int64_t{64} << 20;
constexpr int64_t kCopyBytes = int64_t{1} << 30;
constexpr int kWarmUp = 2;

/// Random bf16 (weights and scales) of magnitude below 2^-4, random codes.
absl::StatusOr<Buffer> RandomWeights(int64_t bytes) {
  MOERT_ASSIGN_OR_RETURN(Buffer weights, Buffer::Device(bytes));
  std::vector<uint64_t> pattern(std::min(bytes, kPatternBytes) / 8 + 1);
  std::mt19937_64 rng(1);
  for (uint64_t& word : pattern) word = (rng() & 0x83ff83ff83ff83ffu) | 0x3800380038003800u;
  const auto length = static_cast<int64_t>(pattern.size() * 8);
  for (int64_t at = 0; at < bytes; at += length) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaMemcpy(weights.data() + at, pattern.data(),
                                          std::min(length, bytes - at), cudaMemcpyHostToDevice));
  }
  return weights;
}

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

/// The buffers of one layer call; `Carve` as the executor's workspace.
struct LayerBuffers {
  int32_t* ids;
  float* gate;  // of few tokens: routes them as drawn
  cuda::SlotGroups groups;
  cuda::TileTable table;
  cuda::PromptTable prompt;

  void Carve(const MoeLayerSpec& l, int64_t tokens, cuda::Carver* c) {
    const int64_t experts = l.num_experts;
    const int64_t pairs = tokens * l.routing.top_k;
    const int64_t tiles = cuda::MaxTiles(tokens, l.routing.top_k, experts);
    const int64_t units = cuda::MaxPromptExtent(l, tokens).units;
    ids = c->Take<int32_t>(pairs);
    gate = c->Take<float>(experts * l.hidden);
    groups.sorted = c->Take<int32_t>(pairs);
    groups.firsts = c->Take<int32_t>(experts);
    groups.counts = c->Take<int32_t>(experts);
    groups.chunks = c->Take<int32_t>(cuda::GroupChunks(pairs) * experts);
    table.tiles = c->Take<cuda::Tile>(tiles);
    for (int p = 0; p < 2; ++p) {
      table.starts[p] = c->Take<cuda::Position>(cuda::kMaxShares + 1);
    }
    table.ready = c->Take<int32_t>(tiles);
    table.ticket = c->Take<int32_t>(2);
    prompt.units = c->Take<cuda::PromptUnit>(units);
    prompt.tiles[0] = c->Take<uint32_t>(units * ((l.intermediate + 63) / 64));
    prompt.tiles[1] = c->Take<uint32_t>(units * ((l.hidden + 127) / 128));
    prompt.begins = c->Take<int32_t[cuda::kPromptPackings + 1]>(2);
    prompt.tickets = c->Take<int32_t[cuda::kPromptPackings]>(2);
    prompt.unit_count = c->Take<int32_t>(1);
  }
};

/// What the layers share.
struct SharedBuffers {
  float* x;  // or bf16
  float* y;
  float* scores;
  float* weights;
  int32_t* drawn_ids;
  uint8_t* packed_x;
  uint8_t* prompt_x;
  uint8_t* h;
  float* wide_h;
  float* h_scales;
  float* out;

  void Carve(const MoeLayerSpec& l, int64_t tokens, cuda::Carver* c) {
    const int64_t pairs = tokens * l.routing.top_k;
    x = c->Take<float>(tokens * l.hidden);
    y = c->Take<float>(tokens * l.hidden);
    scores = c->Take<float>(tokens * l.num_experts);
    weights = c->Take<float>(pairs);
    drawn_ids = c->Take<int32_t>(pairs);
    packed_x = c->Take<uint8_t>(tokens * cuda::OperandBytes(l.hidden));
    prompt_x = c->Take<uint8_t>(tokens * RoundUp(l.hidden, 64) * 2);
    const int64_t inter = RoundUp(l.intermediate, 64);
    h = c->Take<uint8_t>(std::max(pairs * cuda::OperandBytes(inter),
                                  cuda::MaxPromptExtent(l, tokens).h_rows * inter * 2));
    const int64_t h_rows = std::max(pairs, cuda::MaxPromptExtent(l, tokens).h_rows);
    wide_h = c->Take<float>(h_rows * inter);
    h_scales = c->Take<float>(h_rows);
    out = c->Take<float>(pairs * RoundUp(l.hidden, 64));
  }
};

/// A graph of one call of every layer.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (replay_ != nullptr) cudaGraphExecDestroy(replay_);
  }
  absl::Status Capture(cudaStream_t stream, const std::function<absl::Status()>& calls) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const absl::Status called = calls();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (called.ok() && ended == cudaSuccess) {
      const cudaError_t error = cudaGraphInstantiate(&replay_, graph, 0);
      cudaGraphDestroy(graph);
      MOERT_CUDA_RETURN_IF_ERROR(error);
      return absl::OkStatus();
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    return called.ok() ? cuda::ToStatus(ended, "capturing a layer") : called;
  }
  absl::Status Launch(cudaStream_t stream) const {
    MOERT_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(replay_, stream));
    return absl::OkStatus();
  }

 private:
  cudaGraphExec_t replay_ = nullptr;
};

class GemmBench {
 public:
  GemmBench(const MoeLayerSpec& spec, const GemmCudaOptions& options)
      : spec_(spec),
        layers_(options.layers),
        repeats_(options.repeats),
        dtype_(options.f32_rows ? DType::kF32 : DType::kBF16) {}

  absl::Status Init(const ExpertFormat& format, const Buffer& copied) {
    copied_ = &copied;
    MOERT_ASSIGN_OR_RETURN(layout_, MakeRecordLayout(spec_.hidden, spec_.intermediate, format));
    MOERT_ASSIGN_OR_RETURN(format_, cuda::MakeDeviceFormat(layout_));
    MOERT_ASSIGN_OR_RETURN(stream_, Stream::Create());
    for (Event& event : events_) {
      MOERT_ASSIGN_OR_RETURN(event, Event::Create());
    }
    const int64_t stride = RoundUp(layout_.bytes, kRecordAlignment);
    const int64_t records = layers_ * spec_.num_experts;
    MOERT_ASSIGN_OR_RETURN(weights_, RandomWeights(records * stride));
    std::vector<cuda::ExpertHandle> handles;
    for (int64_t l = 0; l < layers_; ++l) {
      for (int64_t e = 0; e < spec_.num_experts; ++e) {
        handles.push_back({reinterpret_cast<const uint8_t*>(weights_.data()) +
                               (l * spec_.num_experts + e) * stride,
                           0});
      }
      handles.push_back({});  // no shared expert
    }
    const auto bytes = static_cast<int64_t>(handles.size() * sizeof(handles[0]));
    MOERT_ASSIGN_OR_RETURN(handles_, Buffer::Device(bytes));
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(handles_.data(), handles.data(), bytes, cudaMemcpyHostToDevice));
    MOERT_ASSIGN_OR_RETURN(formats_, Buffer::Device(sizeof(format_)));
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(formats_.data(), &format_, sizeof(format_), cudaMemcpyHostToDevice));
    return absl::OkStatus();
  }

  absl::Status Measure(int tokens, double zipf, GemmCudaCase* result) {
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

 private:
  /// Buffers, routings and launch arguments.
  absl::Status Prepare(int tokens, double zipf, GemmCudaCase* result) {
    const int top_k = spec_.routing.top_k;
    const int64_t pairs = int64_t{tokens} * top_k;
    prompt_ctas_ = cuda::PromptGemmCtas();
    prompt_ = {};
    if (prompt_ctas_ > 0) {
      cuda::PromptFormats formats;
      formats.Add(format_);
      prompt_ = cuda::PlanPrompt(formats, spec_, tokens);
    }
    calls_.assign(layers_, {});
    const auto carve = [&](cuda::Carver* c) {
      shared_.Carve(spec_, tokens, c);
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
    prompt_x_ = dtype_ == DType::kBF16 && spec_.hidden % 64 == 0
                    ? reinterpret_cast<const uint8_t*>(shared_.x)
                    : shared_.prompt_x;
    few_ = tokens <= cuda::kFewTokens && !prompt_.any();
    MOERT_RETURN_IF_ERROR(Pack());
    int64_t touched = 0;
    for (const LayerBuffers& l : calls_) {
      const std::vector<int32_t> ids = DrawExperts(tokens, spec_.num_experts, top_k, zipf, &rng);
      std::vector<bool> seen(spec_.num_experts);
      for (const int32_t id : ids) seen[id] = true;
      touched += std::count(seen.begin(), seen.end(), true);
      MOERT_CUDA_RETURN_IF_ERROR(
          cudaMemcpy(l.ids, ids.data(), ids.size() * sizeof(ids[0]), cudaMemcpyHostToDevice));
      if (few_) MOERT_RETURN_IF_ERROR(UploadGate(x, ids, l.gate));
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGroup(l.ids, static_cast<int>(pairs),
                                                   spec_.num_experts, l.groups, stream_.get()));
    }
    MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.get()));
    shares_ = cuda::GroupGemmShares();
    result->tokens = tokens;
    result->zipf = zipf;
    result->experts = static_cast<double>(touched) / layers_;
    result->bytes = result->experts * static_cast<double>(layout_.bytes);
    result->flops = 6.0 * static_cast<double>(spec_.hidden * spec_.intermediate * pairs);
    return absl::OkStatus();
  }

  absl::Status UploadRows(const std::vector<float>& x) {
    std::vector<uint16_t> rounded;
    for (const float v : x) rounded.push_back(F32ToBf16(v));
    const bool narrow = dtype_ == DType::kBF16;
    const void* from = narrow ? static_cast<const void*>(rounded.data()) : x.data();
    MOERT_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(shared_.x, from, x.size() * (narrow ? 2 : 4), cudaMemcpyHostToDevice));
    return absl::OkStatus();
  }

  /// A gate that gives random rows x the experts `ids`: the rows are almost orthogonal.
  absl::Status UploadGate(const std::vector<float>& x, const std::vector<int32_t>& ids,
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

  absl::Status Pack() {
    if (prompt_.rounded()) {
      if (prompt_x_ != shared_.prompt_x) return absl::OkStatus();
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchRoundRows(
          rows_, shared_.prompt_x, RoundUp(spec_.hidden, 64) * 2, stream_.get()));
    } else {
      MOERT_CUDA_RETURN_IF_ERROR(LaunchPackRows(rows_, format_.gate.operand, shared_.packed_x,
                                                cuda::OperandBytes(spec_.hidden), stream_.get()));
    }
    return absl::OkStatus();
  }

  absl::Status PromptTiles(int layer) {
    const LayerBuffers& l = calls_[layer];
    cuda::MakePromptTilesArgs args;
    args.table = l.prompt;
    args.most = prompt_.most;
    args.packings = prompt_.packings;
    args.formats = reinterpret_cast<const cuda::DeviceFormat*>(formats_.data());
    args.handles = reinterpret_cast<const cuda::ExpertHandle*>(handles_.data()) +
                   int64_t{layer} * (spec_.num_experts + 1);
    args.groups = l.groups;
    args.experts = spec_.num_experts;
    args.tokens = rows_.rows;
    for (int e = 0; e < spec_.num_experts; ++e) args.wave.Add(e);
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchMakePromptTiles(args, stream_.get()));
    return absl::OkStatus();
  }

  absl::Status PromptProducts(int layer) {
    cuda::PromptGemmArgs args;
    args.table = calls_[layer].prompt;
    args.most = prompt_.most;
    for (int p = 0; p < 2; ++p) args.packings[p] = prompt_.of_product[p];
    args.x = prompt_x_;
    args.x_stride = RoundUp(spec_.hidden, 64) * 2;
    args.h = shared_.h;
    args.h_stride = RoundUp(spec_.intermediate, 64) * 2;
    args.out = reinterpret_cast<uint16_t*>(shared_.out);
    args.out_stride = RoundUp(spec_.hidden, 64);
    args.pairs = rows_.rows * spec_.routing.top_k;
    args.top_k = spec_.routing.top_k;
    args.activation = static_cast<int32_t>(spec_.activation.function);
    args.ctas = prompt_ctas_;
    args.int8_x = shared_.packed_x;
    args.int8_x_stride = cuda::OperandBytes(spec_.hidden);
    args.int8_x_scales = cuda::OperandScales(spec_.hidden);
    args.wide_h = shared_.wide_h;
    args.wide_h_stride = RoundUp(spec_.intermediate, 64);
    args.h_scales = shared_.h_scales;
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchPromptProducts(args, stream_.get()));
    return absl::OkStatus();
  }

  cuda::MakeTilesArgs TilesOf(int layer) {
    const LayerBuffers& l = calls_[layer];
    cuda::MakeTilesArgs args;
    args.table = l.table;
    args.formats = reinterpret_cast<const cuda::DeviceFormat*>(formats_.data());
    args.handles = reinterpret_cast<const cuda::ExpertHandle*>(handles_.data()) +
                   int64_t{layer} * (spec_.num_experts + 1);
    args.groups = l.groups;
    args.experts = spec_.num_experts;
    args.tokens = rows_.rows;
    args.shares = shares_;
    for (int e = 0; e < spec_.num_experts; ++e) args.wave.Add(e);
    return args;
  }

  absl::Status Tiles(int layer) {
    if (prompt_.any()) return PromptTiles(layer);
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchMakeTiles(TilesOf(layer), stream_.get()));
    return absl::OkStatus();
  }

  absl::Status Products(int layer) {
    if (prompt_.any()) return PromptProducts(layer);
    cuda::GroupGemmArgs args;
    args.table = calls_[layer].table;
    args.x[format_.gate.operand] = shared_.packed_x;
    args.h = shared_.h;
    args.wide_h = shared_.wide_h;
    args.out = shared_.out;
    args.x_stride = cuda::OperandBytes(spec_.hidden);
    args.h_stride = cuda::OperandBytes(RoundUp(spec_.intermediate, 64));
    args.wide_h_stride = RoundUp(spec_.intermediate, 64);
    args.out_stride = RoundUp(spec_.hidden, 64);
    args.pairs = rows_.rows * spec_.routing.top_k;
    args.top_k = spec_.routing.top_k;
    args.hidden = static_cast<int32_t>(spec_.hidden);
    args.shares = shares_;
    if (format_.down.operand == 0) {
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchProducts(args, stream_.get()));
      return absl::OkStatus();
    }
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGateUp(args, stream_.get()));
    cuda::PackHiddenArgs pack;
    pack.table = args.table;
    pack.wide_h = args.wide_h;
    pack.wide_h_stride = args.wide_h_stride;
    pack.h = args.h;
    pack.h_stride = args.h_stride;
    pack.shares = shares_;
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchPackHidden(pack, stream_.get()));
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchDown(args, stream_.get()));
    return absl::OkStatus();
  }

  cuda::DeviceRouting Routing() const {
    cuda::DeviceRouting routing;
    routing.num_experts = spec_.num_experts;
    routing.top_k = spec_.routing.top_k;
    return routing;
  }

  /// What comes before the products of few tokens. The gate routes them as drawn.
  absl::Status RouteFew(int layer) {
    const LayerBuffers& l = calls_[layer];
    const bool packs = format_.gate.operand == 0;
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchGateLogits(
        rows_, l.gate, spec_.num_experts, shared_.scores, stream_.get(),
        packs ? shared_.packed_x : nullptr, cuda::OperandBytes(spec_.hidden)));
    if (!packs) MOERT_RETURN_IF_ERROR(Pack());
    cuda::RouteFewArgs args;
    args.routing = Routing();
    args.tokens = rows_.rows;
    args.scores = shared_.scores;
    args.ids = shared_.drawn_ids;
    args.weights = shared_.weights;
    args.groups = l.groups;
    args.makes_tiles = 1;
    args.tiles = TilesOf(layer);
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchRouteFew(args, stream_.get()));
    return absl::OkStatus();
  }

  /// The same of more tokens. The ids grouped are the drawn ones.
  absl::Status RouteMany(int layer) {
    const LayerBuffers& l = calls_[layer];
    const int pairs = rows_.rows * spec_.routing.top_k;
    MOERT_CUDA_RETURN_IF_ERROR(
        cuda::LaunchGateLogits(rows_, l.gate, spec_.num_experts, shared_.scores, stream_.get()));
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchTopK(Routing(), rows_.rows, shared_.scores,
                                                shared_.drawn_ids, shared_.weights, stream_.get()));
    MOERT_CUDA_RETURN_IF_ERROR(
        cuda::LaunchGroup(l.ids, pairs, spec_.num_experts, l.groups, stream_.get()));
    MOERT_RETURN_IF_ERROR(Pack());
    return Tiles(layer);
  }

  /// All kernels of a layer whose experts are there.
  absl::Status Layer(int layer) {
    MOERT_RETURN_IF_ERROR(few_ ? RouteFew(layer) : RouteMany(layer));
    MOERT_RETURN_IF_ERROR(Products(layer));
    cuda::CombineArgs combine;
    combine.x = rows_;
    combine.slots = shared_.out;
    combine.slot_stride = RoundUp(spec_.hidden, 64);
    combine.narrow = prompt_.any();
    combine.weights = shared_.weights;
    combine.top_k = spec_.routing.top_k;
    combine.out = shared_.y;
    combine.out_dtype = static_cast<int32_t>(dtype_);
    combine.out_stride = spec_.hidden;
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchCombine(combine, stream_.get()));
    return absl::OkStatus();
  }

  absl::Status Mark(int event) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(events_[event].get(), stream_.get()));
    return absl::OkStatus();
  }
  /// Microseconds.
  absl::StatusOr<double> Between(int from, int to) {
    float ms = 0;
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&ms, events_[from].get(), events_[to].get()));
    return 1e3 * static_cast<double>(ms);
  }

  const MoeLayerSpec spec_;
  const int layers_;
  const int repeats_;
  const DType dtype_;  // of the rows
  const Buffer* copied_ = nullptr;
  RecordLayout layout_;
  cuda::DeviceFormat format_;
  Stream stream_;
  Event events_[4];
  Buffer weights_, handles_, formats_, memory_;
  SharedBuffers shared_{};
  std::vector<LayerBuffers> calls_;
  cuda::DeviceRows rows_;
  const uint8_t* prompt_x_ = nullptr;
  bool few_ = false;  // one launch routes and makes tiles
  int shares_ = 0;
  int prompt_ctas_ = 0;
  cuda::PromptPlan prompt_;
};

}  // namespace

absl::Status BenchGemmCuda(const GemmCudaOptions& options, nlohmann::json* machine,
                           const std::function<void(const GemmCudaCase&)>& done) {
  const absl::Status available = CudaStatus();
  if (!available.ok()) return absl::UnavailableError(available.message());
  cudaDeviceProp properties;
  int driver = 0, runtime = 0;
  MOERT_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, 0));
  MOERT_CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&driver));
  MOERT_CUDA_RETURN_IF_ERROR(cudaRuntimeGetVersion(&runtime));
  (*machine)["device"] = properties.name;
  (*machine)["cuda_driver"] = fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
  (*machine)["cuda_runtime"] = fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10);
  MOERT_ASSIGN_OR_RETURN(const Buffer copied, Buffer::Device(2 * kCopyBytes));
  MOERT_CUDA_RETURN_IF_ERROR(cudaMemset(copied.data(), 1, 2 * kCopyBytes));
  for (const Shape& shape : options.shapes) {
    for (const ExpertFormat& format : options.formats) {
      GemmBench bench(shape.spec.layers.front(), options);
      MOERT_RETURN_IF_ERROR(bench.Init(format, copied));
      for (const int tokens : options.tokens) {
        for (const double zipf : options.zipf) {
          GemmCudaCase result;
          result.shape = shape.name;
          result.scheme = format.gate.Name() + (format.hadamard ? "+hadamard" : "");
          MOERT_RETURN_IF_ERROR(bench.Measure(tokens, zipf, &result));
          done(result);
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace moert::cli
