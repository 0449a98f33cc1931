#include "offline/cuda/block_forward.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/checked_math.h"
#include "base/status_macros.h"
#include "exec/cuda/route/device_routing.h"
#include "kernels/cuda/offline/block_rows.h"
#include "kernels/cuda/offline/dense_product.h"

namespace moert::offline {
namespace {

// If less memory is free, fewer rows are processed at once, down to this number.
constexpr int64_t kFewestRows = 4096;

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

}  // namespace

BlockForward::BlockForward(int device, const BlockRows& block, const ExpertReader& read,
                           ThreadPool* pool, Lanes<ExpertLane>* lanes, const BlockLimits& limits)
    : device_(device),
      block_(block),
      read_(read),
      pool_(pool),
      lanes_(*lanes),
      limits_(limits),
      hidden_(block.layer.hidden),
      intermediate_(block.layer.intermediate),
      tokens_(block.routing.tokens) {}

absl::Status BlockForward::Run(std::vector<uint8_t>* done) {
  if (tokens_ == 0) return absl::OkStatus();
  const absl::Status status = RunOnDevice(done);
  // Waits until no kernel reads the memory that is freed with this object.
  if (stream_.stream != nullptr) cudaStreamSynchronize(stream_.stream);
  return read_error_.ok() ? status : absl::OkStatus();
}

absl::Status BlockForward::RunOnDevice(std::vector<uint8_t>* done) {
  if (!block_.layer.activation.gated || hidden_ * kFloat > Staging::kHalfBytes) {
    return absl::OkStatus();
  }
  MOERT_RETURN_IF_ERROR(Allocate());
  MOERT_RETURN_IF_ERROR(UploadChoice());
  for (int64_t first = 0; first < tokens_; first += rows_at_once_) {
    MOERT_RETURN_IF_ERROR(RunPart(first, std::min(rows_at_once_, tokens_ - first), done));
  }
  return absl::OkStatus();
}

absl::Status BlockForward::Allocate() {
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream_.stream, cudaStreamNonBlocking));
  const int64_t matrix = hidden_ * intermediate_;
  const int64_t expert_bytes = 3 * matrix * static_cast<int64_t>(sizeof(uint16_t));
  experts_at_once_ =
      std::clamp<int64_t>(limits_.set_bytes / expert_bytes, 1, block_.layer.num_experts);
  for (WeightSet& set : sets_) {
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&set.used, cudaEventDisableTiming));
    MOERT_RETURN_IF_ERROR(Grow(&set.weights, experts_at_once_ * expert_bytes));
  }
  const int64_t rows = std::min(limits_.product_rows, tokens_);
  const auto chosen = static_cast<int64_t>(block_.routing.grouped_tokens.size());
  const auto carve = [&](cuda::Carver c) {
    weights_ = c.Take<float>(3 * matrix);
    for (float** to : {&x_, &y_}) *to = c.Take<float>(rows * hidden_);
    for (float** to : {&gate_, &up_, &h_}) *to = c.Take<float>(rows * intermediate_);
    chosen_rows_ = c.Take<int32_t>(chosen);
    chosen_weights_ = c.Take<float>(chosen);
    return c.used();
  };
  MOERT_RETURN_IF_ERROR(Grow(&scratch_, carve(cuda::Carver())));
  carve(cuda::Carver(scratch_.data()));
  return AllocateRows();
}

absl::Status BlockForward::AllocateRows() {
  const int64_t row_bytes = 2 * hidden_ * kFloat;
  rows_at_once_ = std::clamp<int64_t>(limits_.row_bytes / row_bytes, 1, tokens_);
  absl::Status status = Grow(&rows_, rows_at_once_ * row_bytes);
  while (absl::IsResourceExhausted(status) && rows_at_once_ > kFewestRows) {
    rows_at_once_ = CeilDiv(rows_at_once_, 2);
    status = Grow(&rows_, rows_at_once_ * row_bytes);
  }
  MOERT_RETURN_IF_ERROR(status);
  inputs_ = reinterpret_cast<float*>(rows_.data());
  residual_ = inputs_ + rows_at_once_ * hidden_;
  return absl::OkStatus();
}

absl::Status BlockForward::UploadChoice() {
  const RoutingResult& routing = block_.routing;
  const auto count = static_cast<int64_t>(routing.grouped_tokens.size());
  std::vector<float> weights;
  weights.reserve(routing.grouped_slots.size());
  for (const int32_t slot : routing.grouped_slots) weights.push_back(routing.weights[slot]);
  return OnLanes(1, [&](int64_t, ExpertLane* lane) -> absl::Status {
    MOERT_RETURN_IF_ERROR(lane->Upload(routing.grouped_tokens.data(), count, chosen_rows_));
    return lane->Upload(weights.data(), count, chosen_weights_);
  });
}

absl::Status BlockForward::RunPart(int64_t first, int64_t count, std::vector<uint8_t>* done) {
  const int64_t slice = std::max<int64_t>(1, Staging::kHalfBytes / (hidden_ * kFloat));
  const auto on_slices = [&](auto work) {
    return OnLanes(CeilDiv(count, slice), [&](int64_t job, ExpertLane* lane) {
      const int64_t row = job * slice;
      return work(lane, row, std::min(slice, count - row));
    });
  };
  MOERT_RETURN_IF_ERROR(on_slices([&](ExpertLane* lane, int64_t row, int64_t rows) -> absl::Status {
    const int64_t from = (first + row) * hidden_, to = row * hidden_;
    MOERT_RETURN_IF_ERROR(lane->Upload(block_.inputs + from, rows * hidden_, inputs_ + to));
    return lane->Upload(block_.residual + from, rows * hidden_, residual_ + to);
  }));
  MOERT_RETURN_IF_ERROR(RunExperts(first, count));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream_.stream));
  return on_slices([&](ExpertLane* lane, int64_t row, int64_t rows) -> absl::Status {
    MOERT_RETURN_IF_ERROR(lane->Download(residual_ + row * hidden_, rows * hidden_,
                                         block_.residual + (first + row) * hidden_));
    std::fill_n(done->begin() + first + row, rows, uint8_t{1});
    return absl::OkStatus();
  });
}

absl::Status BlockForward::RunExperts(int64_t first, int64_t count) {
  std::vector<Choice> choices;
  for (int e = 0; e < block_.layer.num_experts; ++e) {
    const Choice choice = ChoiceOf(e, first, count);
    if (choice.count > 0) choices.push_back(choice);
  }
  const int64_t matrix = hidden_ * intermediate_;
  size_t turn = 0;
  const auto at_once = static_cast<size_t>(experts_at_once_);
  for (size_t begin = 0; begin < choices.size(); begin += at_once, turn ^= 1) {
    const size_t size = std::min(at_once, choices.size() - begin);
    const WeightSet& set = sets_[turn];
    auto* const weights = reinterpret_cast<uint16_t*>(set.weights.data());
    MOERT_CUDA_RETURN_IF_ERROR(cuda::AwaitEvent(set.used));
    std::vector<absl::Status> read(size);
    const absl::Status loaded =
        OnLanes(static_cast<int64_t>(size), [&](int64_t i, ExpertLane* lane) -> absl::Status {
          ExpertWeights w;
          absl::Status& status = read[i];
          status = read_(choices[begin + static_cast<size_t>(i)].expert, &w);
          MOERT_RETURN_IF_ERROR(status);
          uint16_t* to = weights + 3 * i * matrix;
          for (const std::vector<uint16_t>* from : {&w.gate, &w.up, &w.down}) {
            if (static_cast<int64_t>(from->size()) != matrix) {
              return absl::InternalError("an expert's matrix is of another size than its layer's");
            }
            MOERT_RETURN_IF_ERROR(lane->Upload(from->data(), matrix, to));
            to += matrix;
          }
          return absl::OkStatus();
        });
    for (const absl::Status& status : read) read_error_.Update(status);
    MOERT_RETURN_IF_ERROR(loaded);
    for (size_t i = 0; i < size; ++i) {
      MOERT_RETURN_IF_ERROR(Multiply(choices[begin + i], weights + 3 * i * matrix, first));
    }
    MOERT_CUDA_RETURN_IF_ERROR(cudaEventRecord(set.used, stream_.stream));
  }
  return absl::OkStatus();
}

absl::Status BlockForward::Multiply(const Choice& choice, const uint16_t* weights, int64_t first) {
  const cudaStream_t stream = stream_.stream;
  const cuda::DeviceActivation activation = cuda::MakeDeviceActivation(block_.layer.activation);
  const int64_t matrix = hidden_ * intermediate_;
  const float *gate_w = weights_, *up_w = gate_w + matrix, *down_w = up_w + matrix;
  MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchWiden(weights, 3 * matrix, weights_, stream));
  for (int64_t at = 0; at < choice.count; at += limits_.product_rows) {
    const int64_t rows = std::min(limits_.product_rows, choice.count - at);
    const int32_t* const chosen = chosen_rows_ + choice.begin + at;
    MOERT_CUDA_RETURN_IF_ERROR(
        cuda::LaunchGatherRows(inputs_, chosen, first, rows, hidden_, x_, stream));
    for (const auto& [w, y] : {std::pair(gate_w, gate_), std::pair(up_w, up_)}) {
      MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchProduct({x_, hidden_}, {w, hidden_}, y, rows,
                                                     intermediate_, hidden_, stream));
    }
    MOERT_CUDA_RETURN_IF_ERROR(
        cuda::LaunchActivate(activation, gate_, up_, nullptr, h_, rows * intermediate_, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchProduct({h_, intermediate_}, {down_w, intermediate_}, y_,
                                                   rows, hidden_, intermediate_, stream));
    MOERT_CUDA_RETURN_IF_ERROR(cuda::LaunchAddRows(y_, chosen, chosen_weights_ + choice.begin + at,
                                                   first, rows, hidden_, residual_, stream));
  }
  return absl::OkStatus();
}

BlockForward::Choice BlockForward::ChoiceOf(int expert, int64_t first, int64_t count) const {
  const RoutingResult& routing = block_.routing;
  const auto rows = routing.grouped_tokens.begin();  // an expert's ascend
  const auto begin = rows + routing.offsets[expert];
  const auto end = rows + routing.offsets[static_cast<size_t>(expert) + 1];
  const auto from = std::lower_bound(begin, end, first);
  const auto to = std::lower_bound(from, end, first + count);
  return {expert, from - rows, to - from};
}

absl::Status BlockForward::OnLanes(
    int64_t jobs, absl::FunctionRef<absl::Status(int64_t job, ExpertLane* lane)> work) {
  std::vector<absl::Status> statuses(jobs);
  pool_->Run(jobs, [&](int64_t job, int) {
    const cuda::DeviceScope scope(device_);
    ExpertLane* const lane = lanes_.Take();
    absl::Status status = scope.status();
    if (status.ok()) {
      try {
        status = work(job, lane);
      } catch (const std::bad_alloc&) {
        status = absl::ResourceExhaustedError("out of memory");
      }
    }
    status.Update(cuda::ToStatus(cudaStreamSynchronize(lane->stream), "cudaStreamSynchronize"));
    lanes_.Return(lane);
    statuses[job] = status;
  });
  for (const absl::Status& status : statuses) MOERT_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace moert::offline
