#include "exec/cuda/cache/served_misses.h"

#include <algorithm>
#include <cstddef>

#include "base/errors.h"
#include "base/status_macros.h"
#include "store/lent_blocks.h"

namespace moert::cuda {

ServedMisses::~ServedMisses() {
  if (moved_ != nullptr) cudaEventDestroy(moved_);
  if (own_ != nullptr) cudaStreamDestroy(own_);
}

absl::Status ServedMisses::Init(const MoeModelSpec* model, const DeviceModel* on_device,
                                DeviceSource* records, int version, const ServedRules& rules,
                                const ServedBuffers& buffers, const ExpertHandle* first_shared) {
  model_ = model;
  constants_ = on_device;
  rules_ = rules;
  records_ = records;
  on_device_ = buffers;
  int64_t total = 0;
  for (const MoeLayerSpec& layer : model->layers) {
    if (layer.num_experts > kFewExperts) {
      return FailedPrecondition(
          "a layer has {} experts: the device serves misses of layers of at most {}",
          layer.num_experts, kFewExperts);
    }
    first_.push_back(total);
    total += layer.num_experts;
  }
  const MoeLayerSpec& like = model->layers.front();
  gives_slots_ =
      rules.shares_slots && on_device != nullptr && model->num_layers() > 2 &&
      model->num_layers() <= kFewExperts &&
      std::all_of(model->layers.begin(), model->layers.end(), [&](const MoeLayerSpec& layer) {
        return layer.num_experts == like.num_experts && layer.routing.top_k == like.routing.top_k;
      });
  Carver count;
  table_.Carve(*model, rules, &count);
  table_bytes_ = count.used();
  MOERT_ASSIGN_OR_RETURN(memory_, Buffer::Pinned(table_bytes_));
  Carver carver(memory_.data());
  table_.Carve(*model, rules, &carver);
  MOERT_ASSIGN_OR_RETURN(const std::vector<ServedRecord> placed, RecordsOf(version));
  MOERT_RETURN_IF_ERROR(CopyNow(on_device_.records, placed.data(),
                                placed.size() * sizeof(placed[0]), cudaMemcpyHostToDevice));
  if (records->moves()) MOERT_RETURN_IF_ERROR(InitMoving(placed));
  MOERT_RETURN_IF_ERROR(FillNow(on_device_.table.layers, 0, static_cast<size_t>(table_bytes_)));
  MOERT_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking));
  MOERT_RETURN_IF_ERROR(branch_.Init());
  MOERT_RETURN_IF_ERROR(ForgetPredictions());
  MOERT_RETURN_IF_ERROR(beside_.Init());
  seen_.resize(model->layers.size());
  unfinished_.assign(model->layers.size(), 0);
  MOERT_RETURN_IF_ERROR(
      tally_.Init(on_device_.tally, model->num_layers() * int64_t{sizeof(ServedTally)}));
  return LoadKernels(first_shared);
}

absl::Status ServedMisses::ForgetPredictions() const {
  const PredictionMemory& predictions = on_device_.predictions;
  const auto layers = static_cast<size_t>(model_->num_layers());
  const auto experts = static_cast<size_t>(model_->total_experts());
  MOERT_RETURN_IF_ERROR(
      FillNow(predictions.curves, 0, (layers + 1) * kHitBins * sizeof(HitCounts)));
  MOERT_RETURN_IF_ERROR(FillNow(predictions.bins, 0, experts * kFewTokens));
  MOERT_RETURN_IF_ERROR(FillNow(predictions.wanted, 0, experts * sizeof(predictions.wanted[0])));
  return FillNow(predictions.calls, 0, layers * sizeof(PredictedCall));
}

absl::Status ServedMisses::LoadDecisions(ServeMissesArgs args) {
  for (const MoeLayerSpec& layer : model_->layers) {
    RouteFewArgs route;  // of no tokens
    route.routing.num_experts = layer.num_experts;
    const int most = rules_.low() ? 1 : 0;
    // Loads the kernels of usual calls and of others, with and without low answers.
    for (const int usual : {0, 1}) {
      args.makes_tiles = usual;
      for (args.answers_low = 0; args.answers_low <= most; ++args.answers_low) {
        MOERT_CUDA_RETURN_IF_ERROR(LaunchRouteAndServe(route, args, own_));
      }
      if (!rules_.ruled) continue;
      MOERT_CUDA_RETURN_IF_ERROR(LaunchRuleAndServe(route, ExpertCacheArgs{}, args, own_));
    }
  }
  return absl::OkStatus();
}

absl::Status ServedMisses::LoadKernels(const ExpertHandle* shared) {
  Call call;
  call.shared = shared;
  call.tokens = 1;
  ServeMissesArgs args = Args(call);
  args.experts = 0;
  args.use = nullptr;
  args.window = 0;
  MOERT_RETURN_IF_ERROR(LoadDecisions(args));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchServeMisses(args, own_));
  MOERT_CUDA_RETURN_IF_ERROR(LaunchCopyRecords(args.copies, args.num_copies, own_));
  if (rules_.prefetch()) {
    // One kernel for each size of layers. Layers that are not lent predict nothing.
    for (int l = 0; l < model_->num_layers(); ++l) {
      MOERT_CUDA_RETURN_IF_ERROR(LaunchPredictRecords(PredictionOf(l, call), own_));
    }
    MOERT_CUDA_RETURN_IF_ERROR(LaunchCopyPrefetched(on_device_.table.prefetch, own_));
  }
  return MOERT_CUDA_STATUS(cudaStreamSynchronize(own_));
}

const uint8_t* ServedMisses::Mapped(const std::byte* host, int64_t bytes) const {
  constexpr int64_t kWord = 16;  // bytes that the copy kernels move at once
  if (host == nullptr) return nullptr;
  cudaPointerAttributes seen{};
  if (cudaPointerGetAttributes(&seen, host) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  const bool aligned = reinterpret_cast<uintptr_t>(seen.devicePointer) % kWord == 0;
  return aligned && bytes % kWord == 0 ? static_cast<const uint8_t*>(seen.devicePointer) : nullptr;
}

absl::StatusOr<std::vector<ServedRecord>> ServedMisses::RecordsOf(int version) const {
  std::vector<ServedRecord> placed;
  for (int l = 0; l < model_->num_layers(); ++l) {
    for (int e = 0; e < model_->layers[l].num_experts; ++e) {
      const RecordLayout& layout = records_->layout(l, e, version);
      const std::byte* host = records_->KeptRecord({l, e}, version);
      const uint8_t* const mapped = Mapped(host, layout.bytes);
      const bool below = host == nullptr && records_->moves();
      if (mapped == nullptr && !below) {
        return FailedPrecondition(
            "layer {} expert {}: the device cannot read its record where it lies in host memory", l,
            e);
      }
      const int64_t format = layout.opaque() ? 0 : constants_->FormatOf(&layout);
      placed.push_back({mapped, layout.bytes, static_cast<int32_t>(format)});
    }
  }
  return placed;
}

absl::Status ServedMisses::PlaceLow(const VersionedStore& store, int version) {
  std::vector<ServedRecord> placed;
  if (rules_.low_stands_by) {
    for (int l = 0; l < model_->num_layers(); ++l) {
      for (int e = 0; e < model_->layers[l].num_experts; ++e) {
        const moert::ExpertHandle handle = store.Standby({l, e});
        // 0 bytes: a record that stands by is never copied.
        placed.push_back({reinterpret_cast<const uint8_t*>(handle.record), 0,
                          static_cast<int32_t>(constants_->FormatOf(handle.layout))});
      }
    }
  } else {
    MOERT_ASSIGN_OR_RETURN(placed, RecordsOf(version));
  }
  return CopyNow(on_device_.low, placed.data(), placed.size() * sizeof(placed[0]),
                 cudaMemcpyHostToDevice);
}

bool ServedMisses::Predicts(int layer, int64_t tokens) const {
  const int next = layer + 1;
  if (!rules_.prefetch() || next == model_->num_layers() || tokens > kFewTokens) return false;
  return constants_->layer(next).gate != nullptr &&
         model_->layers[next].hidden == model_->layers[layer].hidden;
}

ServeMissesArgs ServedMisses::Args(const Call& call) const {
  const int layer = call.layer;
  const MoeLayerSpec& spec = model_->layers[layer];
  ServeMissesArgs args;
  args.experts = spec.num_experts;
  args.counts = call.groups.counts;
  args.layer = on_device_.table.layers + layer;
  args.rows = on_device_.table.experts + First(layer);
  args.records = on_device_.records + First(layer);
  args.slots = on_device_.table.slots + First(layer);
  args.shared = call.shared;
  args.tally = on_device_.tally + layer;
  if (reads_below()) args.taken = on_device_.taken + First(layer);
  args.ready = on_device_.ready;
  args.late = on_device_.late;
  args.copies = on_device_.copies;
  args.num_copies = on_device_.num_copies;
  args.tokens = call.tokens;
  args.top_k = spec.routing.top_k;
  args.groups = call.groups;
  if (rules_.by_worth) {
    args.use = on_device_.table.use + First(layer);
  } else if (rules_.score_window > 0) {
    args.window = rules_.score_window;
    args.sums = on_device_.table.sums + First(layer);
    args.history = ScoresOf(on_device_.table, layer);
  }
  args.scores = call.scores;
  if (call.low.accounts != nullptr) {
    args.low = {on_device_.low + First(layer), call.low, rules_.low_patience};
  }
  if (!rules_.prefetch()) return args;
  args.prefetch = on_device_.table.prefetch + layer;
  if (layer > 0 && Predicts(layer - 1, call.tokens)) {
    args.wanted = on_device_.predictions.wanted + First(layer);
    args.predicted = on_device_.predictions.calls + layer;
  }
  return args;
}

ServedResidents ServedMisses::Residents(int layer) const {
  ServedResidents residents;
  residents.layer = on_device_.table.layers + layer;
  residents.rows = on_device_.table.experts + First(layer);
  if (rules_.prefetch()) residents.prefetch = on_device_.table.prefetch + layer;
  residents.tally = on_device_.tally + layer;
  return residents;
}

PredictArgs ServedMisses::PredictionOf(int layer, const Call& call) const {
  const PredictionMemory& memory = on_device_.predictions;
  PredictArgs args;
  args.routing = constants_->layer(layer).routing;
  args.tokens = call.tokens;
  args.scores = call.next_scores;
  args.layer = on_device_.table.layers + layer;
  args.rows = on_device_.table.experts + First(layer);
  if (rules_.by_worth) args.use = on_device_.table.use + First(layer);
  if (rules_.score_window > 0) args.sums = on_device_.table.sums + First(layer);
  args.window = rules_.score_window;
  args.records = on_device_.records + First(layer);
  args.slots = on_device_.table.slots + First(layer);
  args.tally = on_device_.tally + layer;
  args.prefetch = on_device_.table.prefetch + layer;
  args.curve = memory.curves + int64_t{layer} * kHitBins;
  args.all = memory.curves + int64_t{model_->num_layers()} * kHitBins;
  args.bins = memory.bins + First(layer) * kFewTokens;
  args.wanted = memory.wanted + First(layer);
  args.call = memory.calls + layer;
  args.fills = rules_.low() ? 1 : 0;
  return args;
}

SlotLenders ServedMisses::LendersOf(int layer) const {
  SlotLenders lenders;
  if (!gives_slots_) return lenders;
  const MoeLayerSpec& spec = model_->layers[layer];
  lenders.layers = model_->num_layers();
  lenders.mine = layer;
  lenders.fewest = ExpertsOfAToken(spec);
  lenders.layer = on_device_.table.layers;
  lenders.rows = on_device_.table.experts;
  lenders.slots = on_device_.table.slots;
  lenders.prefetch = on_device_.table.prefetch;
  return lenders;
}

bool ServedMisses::TakeCounts(ServedCount* added) {
  CountTaken();
  const auto* now = reinterpret_cast<const ServedTally*>(tally_.Take());
  if (now == nullptr) return false;
  *added = {};
  for (size_t l = 0; l < seen_.size(); ++l) {
    const auto more = [&](uint64_t ServedTally::*field) {
      return static_cast<int64_t>(now[l].*field - seen_[l].*field);
    };
    added->lookups += more(&ServedTally::lookups);
    added->hits += more(&ServedTally::hits);
    added->loads += more(&ServedTally::loads);
    added->bytes += more(&ServedTally::bytes);
    added->evictions += more(&ServedTally::evictions);
    added->listed += more(&ServedTally::listed);
    added->arrived += more(&ServedTally::arrived);
    added->late += more(&ServedTally::late);
    added->wasted += more(&ServedTally::wasted);
    added->brought_bytes += more(&ServedTally::brought_bytes);
    added->substituted += more(&ServedTally::substituted);
    added->mass_substituted += now[l].mass_substituted - seen_[l].mass_substituted;
    added->mass_lost += now[l].mass_lost - seen_[l].mass_lost;
    worst_.slots = std::max(worst_.slots, now[l].worst_slot_share);
    worst_.mass = std::max(worst_.mass, now[l].worst_mass_share);
    worst_.low = std::max(worst_.low, now[l].worst_low_share);
    added->low_answers += more(&ServedTally::low);
    added->slots_low += more(&ServedTally::slots_low);
    added->mass_low += now[l].mass_low - seen_[l].mass_low;
    added->fills += more(&ServedTally::fills);
    added->late_fills += more(&ServedTally::late_fills);
    added->cpu_computed += more(&ServedTally::on_cpu);
    added->cpu_taken_back += more(&ServedTally::taken_back);
    added->cpu_below += more(&ServedTally::below);
    added->cpu_lost += more(&ServedTally::lost);
    seen_[l] = now[l];
  }
  if (!rules_.low_stands_by) added->low_loads = added->low_answers;
  added->loads += added->low_loads;
  // Counts of the CPU's part of a call may arrive later than the call's lookups.
  return added->lookups > 0 || added->cpu_computed > 0 || added->cpu_taken_back > 0 ||
         added->cpu_lost > 0;
}

}  // namespace moert::cuda
