#include "store.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

namespace moert_ggml {
namespace {

std::string Message(moert_error* error) {
  std::string text = moert_error_message(error);
  moert_error_destroy(error);
  return text;
}

}  // namespace

void Store::Fill(const std::vector<Layer>& layers, double share) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const double fit = layers[l].experts * std::min(share, 1.0);
    std::vector<int32_t> experts(static_cast<size_t>(fit)), slot_ids(experts.size());
    std::iota(experts.begin(), experts.end(), 0);
    moert_slots slots;
    std::string error;
    if (!experts.empty()) Fetch(static_cast<int>(l), experts, {}, slot_ids, &slots, &error);
    Release();
  }
}

Store::~Store() {
  moert_step_end(step_, nullptr);
  moert_engine_destroy(engine_);
}

void Store::EndStep() {
  moert_step_end(step_, nullptr);
  step_ = nullptr;
}

// A step is one pass over the layers, in their order.
bool Store::BeginStep(int layer, int64_t rows, std::string* error) {
  if (step_ == nullptr || layer < layer_ || rows != rows_) {
    EndStep();
    if (OpenStep(rows, error) != MOERT_OK) return false;
  }
  layer_ = layer;
  return true;
}

moert_code Store::OpenStep(int64_t rows, std::string* error) {
  moert_step_options step;
  moert_step_options_init(&step, sizeof step);
  step.rows = rows_ = rows;
  if (gpu_ != nullptr && !gpu_->in_host_memory()) step.stream = gpu_->stream()->get();
  moert_error* failure = nullptr;
  const moert_code code = moert_step_begin(engine_, &step, &step_, &failure);
  if (code != MOERT_OK) *error = Message(failure);
  return code;
}

Store::Result Store::BeginRecorded(int64_t tokens, std::string* error) {
  moert_error* failure = nullptr;
  if (moert_step_end(std::exchange(step_, nullptr), &failure) != MOERT_OK) {
    *error = Message(failure);  // of a replay, which the host could not see
    return Result::kFailed;
  }
  layer_ = 0;
  const moert_code code = OpenStep(tokens, error);
  if (code == MOERT_OK) return Result::kOk;
  ++generation_;
  return code == MOERT_FAILED_PRECONDITION ? Result::kTooMany : Result::kFailed;
}

Store::Result Store::Fetch(int layer, std::span<const int32_t> experts,
                           std::span<const float> hidden, std::span<int32_t> slot_ids,
                           moert_slots* slots, std::string* error) {
  if (!BeginStep(layer, /*rows=*/1, error)) return Result::kFailed;
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof fetch);
  const auto count = static_cast<int64_t>(experts.size());
  moert_tensor_init(&fetch.ids, const_cast<int32_t*>(experts.data()), 1, count, MOERT_I32);
  moert_tensor_init(&fetch.slot_ids, slot_ids.data(), 1, count, MOERT_I32);
  if (gates_ && !hidden.empty()) {
    moert_tensor_init(&fetch.hidden, const_cast<float*>(hidden.data()), 1,
                      static_cast<int64_t>(hidden.size()), MOERT_F32);
  }
  const Result result = DoFetch(layer, fetch, slots, error);
  if (result == Result::kOk && gpu_ != nullptr) gpu_->stream()->Synchronize();
  return result;
}

Store::Result Store::FetchOnDevice(int layer, int64_t tokens, const int32_t* ids,
                                   const float* hidden, int32_t* slot_ids, moert_slots* slots,
                                   std::string* error, const CpuRows& shared) {
  if (!BeginStep(layer, tokens, error)) return Result::kFailed;
  moert_fetch fetch;
  moert_fetch_init(&fetch, sizeof fetch);
  moert_tensor_init(&fetch.ids, const_cast<int32_t*>(ids), tokens, top_k(layer), MOERT_I32);
  moert_tensor_init(&fetch.slot_ids, slot_ids, tokens, top_k(layer), MOERT_I32);
  if (gates_ && tokens == 1) {
    moert_tensor_init(&fetch.hidden, const_cast<float*>(hidden), 1, hidden_, MOERT_F32);
  }
  if (shared.x != nullptr) {
    moert_tensor_init(&fetch.cpu_rows, const_cast<float*>(shared.x), tokens, hidden_, MOERT_F32);
    fetch.cpu_rows.row_stride = shared.stride;
    fetch.any_slot = 1;  // kernels compute such pairs, too, and TakeCpuRows replaces their rows
  }
  const moert_place place = gpu_->in_host_memory() ? MOERT_HOST : MOERT_DEVICE;
  fetch.ids.place = fetch.slot_ids.place = fetch.hidden.place = fetch.cpu_rows.place = place;
  return DoFetch(layer, fetch, slots, error);
}

Store::Result Store::DoFetch(int layer, const moert_fetch& fetch, moert_slots* slots,
                             std::string* error) {
  moert_slots_init(slots, sizeof *slots);
  moert_error* failure = nullptr;
  const moert_code code = moert_layer_fetch(step_, layer, &fetch, slots, &failure);
  held_ = code == MOERT_OK;
  if (held_) return Result::kOk;
  *error = Message(failure);
  if (code == MOERT_RESOURCE_EXHAUSTED) return Result::kTooMany;
  EndStep();
  return Result::kFailed;
}

bool Store::TakeCpuRows(float* rows, int64_t pairs, std::string* error) {
  moert_tensor tensor;
  moert_tensor_init(&tensor, rows, pairs, hidden_, MOERT_F32);
  tensor.place = gpu_->in_host_memory() ? MOERT_HOST : MOERT_DEVICE;
  moert_error* failure = nullptr;
  if (moert_cpu_rows_take(step_, layer_, &tensor, &failure) == MOERT_OK) return true;
  *error = Message(failure);
  EndStep();
  held_ = false;
  return false;
}

bool Store::Reserve(int layer) {
  if (!staged_) return false;
  moert_slots slots;
  std::string error;
  staged_ = CopyLayer(layer, {}, nullptr, &slots, &error);
  if (staged_) {
    const auto bytes = static_cast<size_t>(slots.slots * slots.stride[0]);
    staged_ = staging_.Reserve(gpu_, bytes);
    error = "no GPU memory for two layers, " + BytesText(2 * static_cast<int64_t>(bytes));
  }
  if (!staged_) GiveUpStaging(error);
  return staged_;
}

void Store::GiveUpStaging(const std::string& error) {
  staged_ = false;
  Say("prompts are computed in parts: %s", error.c_str());
}

bool Store::Stage(int layer, std::span<const int32_t> experts, std::string* error) {
  *error = "the driver refuses to order streams";
  void* place = staging_.Enter(gpu_, layer);
  if (place == nullptr) return false;
  const std::vector<int32_t> missing = staging_.Add(layer, experts);
  if (missing.empty()) return true;
  const auto begin = std::chrono::steady_clock::now();
  const bool times = shares() && timed_ == 0;
  if (times) BeginTiming(layer, missing);
  if (!CopyLayer(layer, missing, place, staging_.slots(layer), error)) {
    staging_.Forget(layer);
    timed_ = 0;
    return false;
  }
  if (times && timed_ > 0 && !gpu_->stream()->Set(CudaStream::kCopiesEnd)) timed_ = 0;
  beside_ += std::ssize(missing);
  plan_.Brought(missing.size(), std::chrono::steady_clock::now() - begin);
  return true;
}

std::vector<uint8_t> Store::InSlots(int layer) const {
  std::vector<uint8_t> states(plan_.All(layer).size());
  if (moert_engine_residency(engine_, layer, states.data(), std::ssize(states), nullptr) !=
      MOERT_OK) {
    states.assign(states.size(), MOERT_RESIDENT_HIGH);
  }
  for (uint8_t& state : states) state = state == MOERT_RESIDENT_HIGH ? 1 : 0;
  return states;
}

void Store::BeginTiming(int layer, std::span<const int32_t> experts) {
  constexpr int64_t kFew = 4;
  const std::vector<uint8_t> in_slots = InSlots(layer);
  const int64_t missing = std::count_if(experts.begin(), experts.end(), [&](int32_t e) {
    return in_slots[static_cast<size_t>(e)] == 0;
  });
  if (missing >= kFew && gpu_->stream()->Set(CudaStream::kCopiesBegin)) timed_ = missing;
}

void Store::EndTiming() {
  if (timed_ == 0 || !gpu_->stream()->Reached(CudaStream::kCopiesEnd)) return;
  const auto took = gpu_->stream()->Between(CudaStream::kCopiesBegin, CudaStream::kCopiesEnd);
  if (took.count() >= 0) prompt_share_.Brought(timed_, took);
  timed_ = 0;
}

std::vector<int32_t> Store::TakeForCpu(int layer, int64_t tokens, bool streams,
                                       std::span<const int32_t> pairs) {
  EndTiming();
  PromptShare::Call call{layer, tokens, streams, pairs};
  const std::vector<uint8_t> in_slots = InSlots(layer);
  call.in_slots = in_slots;
  call.staged = staging_.there(layer);
  std::vector<int32_t> experts =
      prompt_share_.Take(call, std::chrono::steady_clock::now().time_since_epoch());
  if (prompt_share_.helps()) plan_.Shares();
  return experts;
}

std::vector<int32_t> Store::Ahead(int layer, int64_t tokens) {
  if (product(tokens) == nullptr) return plan_.Likely(layer);
  return prompt_share_.Ahead(layer, tokens, plan_.Likely(layer), InSlots(layer));
}

bool Store::Multiply(int layer, const CpuPairs& pairs, std::string* error) {
  const auto begin = std::chrono::steady_clock::now();
  if (step_ == nullptr && !BeginStep(layer, rows_, error)) return false;
  moert_tensor x, rows;
  moert_tensor_init(&x, pairs.x, pairs.rows, hidden_, MOERT_F32);
  moert_tensor_init(&rows, pairs.out, std::ssize(pairs.row_of), hidden_, MOERT_F32);
  moert_error* failure = nullptr;
  if (moert_cpu_multiply(step_, layer, pairs.experts.data(), pairs.pairs.data(),
                         std::ssize(pairs.experts), &x, pairs.row_of.data(), &rows,
                         &failure) != MOERT_OK) {
    *error = Message(failure);
    return false;
  }
  by_cpu_ += std::ssize(pairs.experts);
  prompt_share_.Computed(std::ssize(pairs.experts), std::ssize(pairs.row_of),
                         std::chrono::steady_clock::now() - begin,
                         !gpu_->stream()->Reached(CudaStream::kLayerCopied));
  return true;
}

bool Store::CopyLayer(int layer, std::span<const int32_t> experts, void* to, moert_slots* slots,
                      std::string* error) {
  if (!BeginStep(layer, rows_, error)) return false;
  moert_slots_init(slots, sizeof *slots);
  moert_error* failure = nullptr;
  if (moert_layer_copy(step_, layer, experts.data(), static_cast<int64_t>(experts.size()), to,
                       slots, &failure) == MOERT_OK)
    return true;
  *error = Message(failure);
  EndStep();
  return false;
}

void Store::Release() {
  if (held_) moert_slots_release(step_, layer_, nullptr);
  held_ = false;
}

bool Store::SetBudget(int64_t bytes, double fraction, std::string* error) {
  EndStep();
  const double share = fraction * static_cast<double>(all_bytes_);
  const bool much = bytes > most_bytes_ || share > static_cast<double>(most_bytes_ - fixed_bytes_);
  moert_error* failure = nullptr;
  if (moert_engine_set_budget(engine_, much ? most_bytes_ : bytes, much ? 0 : fraction, &failure) !=
      MOERT_OK) {
    *error = Message(failure);
    return false;
  }
  moert_stats stats;
  moert_stats_init(&stats, sizeof stats);
  if (moert_engine_stats(engine_, &stats, nullptr) == MOERT_OK) budget_bytes_ = stats.budget_bytes;
  small_ = false;
  ++generation_;
  if (trial_) trial_->Restart(Held());
  prompt_trial_.Restart();
  return true;
}

double Store::Held() const {
  return static_cast<double>(budget_bytes_ - fixed_bytes_) / static_cast<double>(all_bytes_);
}

void Store::BeginCall(int layer, int64_t tokens) {
  if (layer != 0 || !shares()) return;
  const auto now = std::chrono::steady_clock::now();
  if (tokens > kFewTokens) {
    prompt_trial_.Begin(tokens, now.time_since_epoch());
  } else {
    prompt_trial_.End(now.time_since_epoch());
  }
  if (!trial_) return;
  if (tokens == 1) {
    trial_->BeginToken(now);
  } else {
    trial_->Interrupt();
  }
}

MemoryNow Store::Memory() const {
  MemoryNow now;
  now.budget = budget_bytes_;
  now.least = least_bytes_;
  now.most = useful_;
  const auto add = [](void* held, const char* name, double value) {
    if (std::strcmp(name, "moert_fixed_bytes") == 0 || std::strcmp(name, "moert_pool_bytes") == 0) {
      *static_cast<int64_t*>(held) += static_cast<int64_t>(value);
    }
  };
  moert_metrics_visit(engine_, add, &now.held, nullptr);
  const int64_t free = FreeBytes(gpu_);
  now.free = free > 0 ? free : -1;
  return now;
}

std::string Store::Metrics(const std::string& label) const {
  uint64_t needed = 0;
  moert_metrics_prometheus(engine_, label.c_str(), nullptr, 0, &needed, nullptr);
  std::string text(needed, '\0');
  if (moert_metrics_prometheus(engine_, label.c_str(), text.data(), text.size(), &needed,
                               nullptr) != MOERT_OK) {
    return "";
  }
  text.resize(needed > 0 ? needed - 1 : 0);
  return text;
}

std::string Store::Statistics() const {
  moert_stats stats;
  moert_stats_init(&stats, sizeof stats);
  if (moert_engine_stats(engine_, &stats, nullptr) != MOERT_OK) return "";
  char text[400];
  std::snprintf(
      text, sizeof text,
      "%lld lookups, %lld resident, %lld prefetched, %lld late, %lld by the CPU, %lld loads, "
      "%lld prefetches, %s read, at most %s held of %s, %.3f s stalled",
      static_cast<long long>(stats.lookups), static_cast<long long>(stats.hits_resident),
      static_cast<long long>(stats.hits_prefetched), static_cast<long long>(stats.late),
      static_cast<long long>(stats.cpu_computed), static_cast<long long>(stats.loads),
      static_cast<long long>(stats.prefetches), BytesText(stats.bytes_loaded).c_str(),
      BytesText(stats.peak_bytes).c_str(), BytesText(stats.budget_bytes).c_str(),
      static_cast<double>(stats.stalled_ns) * 1e-9);
  std::string all = text;
  if (beside_ + by_cpu_ > 0) {
    std::snprintf(text, sizeof text,
                  "; %lld experts came beside the cache, and the CPU computed %lld in their place",
                  static_cast<long long>(beside_), static_cast<long long>(by_cpu_));
    all += text;
  }
  if (calls_ > 0) {
    std::snprintf(text, sizeof text,
                  "; %lld layer calls of few tokens took %.1f us of the host each",
                  static_cast<long long>(calls_),
                  static_cast<double>(host_.count()) * 1e-3 / static_cast<double>(calls_));
    all += text;
  }
  return all;
}

}  // namespace moert_ggml
