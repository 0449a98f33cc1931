#include <cstdio>
#include <cstdlib>

#include "soak.h"
#include "tests/gpu/toy_kernel.h"
#include "tests/support/slow_link.h"

namespace moert::soak {

Counts counts;
std::atomic<bool> stop{false};

bool Failed(const absl::Status& status, const char* call) {
  if (status.ok()) return false;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      ++counts.refused;
      return true;
    default:
      if (++counts.unexplained < 10) {
        std::fprintf(stderr, "%s: %s\n", call, status.ToString().c_str());
      }
      return true;
  }
}

void Own(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "the program's own call: %s\n", cudaGetErrorString(error));
  std::_Exit(3);
}

test::SyntheticShape Shape() {
  test::SyntheticShape shape;
  shape.layers = 3;
  shape.experts = 32;
  shape.top_k = 4;
  shape.hidden = 128;
  shape.intermediate = 96;
  return shape;
}

absl::Status FlakySource::ReadRecord(int layer, int expert, int version,
                                     absl::Span<std::byte> dst) const {
  if (failing && ++count_ % 97 == 0) {
    ++counts.failed_reads;
    return absl::UnavailableError("the soak's own failure");
  }
  return SyntheticSource::ReadRecord(layer, expert, version, dst);
}

Buffer::Buffer(size_t bytes) {
  Own(cudaMalloc(&data_, bytes));
  Own(cudaMemset(data_, 0xff, bytes));
  Own(cudaStreamSynchronize(cudaStreamLegacy));
}
Buffer::~Buffer() { Own(cudaFree(data_)); }

void Stream::Upload(void* to, const void* from, size_t bytes) const {
  Own(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
}
void Stream::Download(void* to, const void* from, size_t bytes) const {
  Own(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  Own(cudaStreamSynchronize(stream_));
}

absl::StatusOr<std::unique_ptr<Engine>> Open(std::shared_ptr<const ExpertSource> source,
                                             const std::string& strategy, double fraction,
                                             int64_t host_budget) {
  EngineOptions options;
  options.backend = BackendKind::kCuda;
  options.strategy = strategy;
  options.budget = Budget::Fraction(fraction);
  options.max_tokens_per_forward = kRows;
  options.threads = 1;
  options.io_threads = 2;
  options.host_budget = host_budget;
  if (strategy == kWithCpu) {  // so slow a link that the CPU takes its part of the misses
    options.profile = test::SlowLink();
  }
  ++counts.engines;
  return Engine::Create(std::move(source), options);
}

Expected ExpectedOutputs() {
  const test::SyntheticShape shape = Shape();
  const auto layer_floats = static_cast<size_t>(kRows * shape.hidden);
  const size_t floats = layer_floats * static_cast<size_t>(shape.layers);
  const Buffer x(floats * sizeof(float)), y(floats * sizeof(float));
  const Stream stream;
  auto engine = Open(std::make_shared<test::SyntheticSource>(shape), "resident", 1, kSomeRecords);
  if (!engine.ok()) std::exit((std::puts(engine.status().ToString().c_str()), 3));
  std::mt19937_64 random(5);
  Expected expected;
  for (int i = 0; i < kInputs; ++i) {
    expected.x[i] = test::SyntheticSource::RandomFloats(static_cast<int64_t>(floats), 1, &random);
    expected.y[i].resize(floats);
    stream.Upload(x.at<float>(), expected.x[i].data(), floats * sizeof(float));
    StepInfo info;
    info.phase = Phase::kDecode;
    info.rows = kRows;
    info.stream = stream.get();
    auto step = (*engine)->Begin(info);
    absl::Status status = step.status();
    for (int l = 0; l < shape.layers && status.ok(); ++l) {
      const size_t at = layer_floats * static_cast<size_t>(l);
      status = step->Forward(l, {x.at<float>(at), DType::kF32, kRows, shape.hidden, shape.hidden},
                             {y.at<float>(at), DType::kF32, kRows, shape.hidden, shape.hidden});
    }
    if (status.ok()) status = step->End();
    if (!status.ok()) std::exit((std::puts(status.ToString().c_str()), 3));
    stream.Download(expected.y[i].data(), y.at<float>(), floats * sizeof(float));
  }
  return expected;
}

std::vector<std::vector<double>> ExpectedProducts(const test::OpaqueModel& model) {
  using test::OpaqueModel;
  constexpr int kE = OpaqueModel::kExperts;
  const Stream stream;
  const Buffer ids(kE * sizeof(int32_t)), out(kE * sizeof(double));
  std::vector<int32_t> every;
  for (int e = 0; e < kE; ++e) every.push_back(e);
  stream.Upload(ids.at<int32_t>(), every.data(), kE * sizeof(int32_t));
  std::vector<std::vector<double>> products;
  for (int l = 0; l < OpaqueModel::kLayers; ++l) {
    std::vector<std::unique_ptr<Buffer>> parts;
    test::ToyWeights weights{};
    for (int p = 0; p < test::ToyWeights::kParts; ++p) {
      const std::vector<std::byte>& bytes = model.data[l][p];
      parts.push_back(std::make_unique<Buffer>(bytes.size()));
      stream.Upload(parts.back()->at<std::byte>(), bytes.data(), bytes.size());
      weights.base[p] = parts.back()->at<std::byte>();
      weights.stride[p] = weights.bytes[p] = OpaqueModel::PartBytes(l, p);
    }
    Own(test::LaunchToy(weights, ids.at<int32_t>(), kE, 0.5, out.at<double>(), stream.get()));
    std::vector<double> of_layer(kE);
    stream.Download(of_layer.data(), out.at<double>(), kE * sizeof(double));
    products.push_back(std::move(of_layer));
  }
  return products;
}

}  // namespace moert::soak
