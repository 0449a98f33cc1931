// Layers of one shape and version whose calls are measured.
#ifndef MOERT_TESTS_RESEARCH_BENCH_GEMM_BENCH_H_
#define MOERT_TESTS_RESEARCH_BENCH_GEMM_BENCH_H_

#include <cstdint>
#include <random>
#include <vector>

#include "bench/gemm_buffers.h"
#include "cli/bench/gemm_cuda.h"
#include "cli/probe/cuda/streams.h"
#include "kernels/cuda/route/rows.h"
#include "moert/tensor.h"

namespace moert::cli {

using cuda::Buffer;

/// Times of the copies within the device that are measured beside the products.
constexpr int64_t kCopyBytes = int64_t{1} << 30;

class GemmBench {
 public:
  GemmBench(const MoeLayerSpec& spec, const GemmCudaOptions& options)
      : spec_(spec),
        layers_(options.layers),
        repeats_(options.repeats),
        dtype_(options.f32_rows ? DType::kF32 : DType::kBF16),
        fp8_(options.fp8),
        products_(options.products) {}

  /// Random weights of every layer. `copied`: 2 kCopyBytes, borrowed.
  absl::Status Init(const PackVersion& version, const Buffer& copied);
  absl::Status Measure(int tokens, double zipf, GemmCudaCase* result);

 private:
  /// Distinct formats, and what their products read.
  absl::Status DescribeFormats();
  int FormatOf(int layer, int expert) const;
  /// Records one behind the other, and the table that says where they are.
  absl::Status PlaceRecords();
  /// Buffers, routings and launch arguments.
  absl::Status Prepare(int tokens, double zipf, GemmCudaCase* result);
  /// A routing for every layer, and where these lead.
  absl::Status DrawCalls(const std::vector<float>& x, double zipf, std::mt19937_64* rng,
                         GemmCudaCase* result);
  absl::Status UploadRows(const std::vector<float>& x);
  /// A gate that gives random rows x the experts `ids`: the rows are almost orthogonal.
  absl::Status UploadGate(const std::vector<float>& x, const std::vector<int32_t>& ids,
                          float* to) const;
  absl::Status Pack();
  /// Rows of x as the products of few tokens, or in integers, read them. besides: without plain
  /// rows, which the gate's launch has packed.
  absl::Status PackOperands(bool besides);
  /// The kind of tiles that are made: the part that both kinds take. In gemm_layer.cc.
  template <typename Args>
  void DescribeExperts(int layer, Args* args) const;
  absl::Status PromptTiles(int layer);
  absl::Status PromptProducts(int layer);
  cuda::MakeTilesArgs TilesOf(int layer);
  absl::Status Tiles(int layer);
  cuda::GroupGemmArgs GemmOf(int layer);
  absl::Status Products(int layer);
  cuda::DeviceRouting Routing() const;
  /// The kernels before the products of few tokens. The gate routes them as drawn.
  absl::Status RouteFew(int layer);
  /// All but the weighted sum, where the products' launch chooses.
  absl::Status ChooseAndMultiply(int layer);
  /// The kernels before the products of more tokens. The ids grouped are the drawn ones.
  absl::Status RouteMany(int layer);
  /// All kernels of a layer whose experts are there.
  absl::Status Layer(int layer);
  absl::Status Mark(int event);
  /// Microseconds.
  absl::StatusOr<double> Between(int from, int to);

  const MoeLayerSpec spec_;
  const int layers_;
  const int repeats_;
  const DType dtype_;           // of the rows
  const bool fp8_;              // GemmCudaOptions
  const std::string products_;  // likewise
  const Buffer* copied_ = nullptr;
  PackVersion version_;
  std::vector<RecordLayout> layouts_;  // of the version's formats
  std::vector<cuda::DeviceFormat> device_formats_;
  cuda::PromptFormats prompt_formats_;
  OperandsUsed used_;
  Stream stream_;
  Event events_[4];
  Buffer weights_, handles_, formats_, memory_;
  SharedBuffers shared_{};
  std::vector<LayerBuffers> calls_;
  cuda::DeviceRows rows_;
  const uint8_t* prompt_x_ = nullptr;
  bool few_ = false;      // one launch routes and makes tiles
  bool chooses_ = false;  // the products' launch does
  int shares_ = 0;
  cuda::PromptDevice prompt_device_;
  cuda::PromptPlan prompt_;
};

}  // namespace moert::cli

#endif  // MOERT_TESTS_RESEARCH_BENCH_GEMM_BENCH_H_
