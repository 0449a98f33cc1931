// The experts of one model in libmoert: an interface of just what the plug-in needs.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STORE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STORE_H_

#include <moert.h>

#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gguf_model.h"
#include "live_budget.h"
#include "options.h"
#include "prompt_share.h"
#include "prompt_trial.h"
#include "share_trial.h"
#include "staging.h"
#include "stream_plan.h"

namespace moert_ggml {

class CpuProduct;

/// One expert tensor of a layer: up, gate, gate and up in one, or down.
struct Part {
  int64_t bytes = 0;             // of one expert, as the GGUF has them; also from expert to expert
  int64_t type_bytes = 1;        // of one block of its format: slots are a multiple of it apart
  int64_t zeros = 0;             // to follow it in a slot, bytes
  const void* memory = nullptr;  // where expert 0 lies
  std::string file;              // the same in a file; empty: in memory alone
  int64_t offset = 0;
};

struct Layer {
  int block = 0;  // of the GGUF
  int experts = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int top_k = 0;  // experts a token uses; 0: not known
  std::vector<Part> parts;

  int64_t ExpertBytes() const;
};

/// The experts' input of a call on the device, some pairs of which the CPU may compute; null: none.
struct CpuRows {
  const float* x = nullptr;
  int64_t stride = 0;  // floats
};

/// Pairs of a layer call that the CPU computes, grouped by expert, in host memory.
struct CpuPairs {
  std::vector<int32_t> experts;
  std::vector<int64_t> pairs;   // of each expert
  std::vector<int32_t> row_of;  // of each pair: in x
  float* x = nullptr;           // [rows, hidden]
  int64_t rows = 0;
  float* out = nullptr;  // [pairs, hidden]
};

/// Free RAM, within a container's limits; 0: not known.
int64_t FreeMemory();
/// The part of it that is left to the context and other programs: an eighth, at least 1 GiB, at
/// most a half.
int64_t FreeReserve(int64_t available);
/// The GPU's free memory, or RAM's if `gpu` is null; 0: not known.
int64_t FreeBytes(const Gpu* gpu);

/// Not thread-safe: the caller holds its model's lock.
class Store {
 public:
  enum class Result { kOk, kTooMany, kFailed };

  /// Opens the experts on `gpu`, or in RAM if it is null. Null: `error` says why.
  static std::unique_ptr<Store> Open(const std::string& name, const std::vector<Layer>& layers,
                                     std::shared_ptr<const GgufModel> file, const Options& options,
                                     Gpu* gpu, std::string* error);
  ~Store();

  /// Makes experts of a layer present until Release: slot_ids receives their slots, `slots` the
  /// addresses. kTooMany: they do not fit at once, and nothing is held. `hidden`: the router's
  /// input for one token, or empty.
  Result Fetch(int layer, std::span<const int32_t> experts, std::span<const float> hidden,
               std::span<int32_t> slot_ids, moert_slots* slots, std::string* error);
  void Release();

  // On a device.

  bool on_device() const { return gpu_ != nullptr; }
  /// Experts a token uses in a layer; 0: not known.
  int top_k(int layer) const { return top_k_[static_cast<size_t>(layer)]; }
  /// Most tokens of FetchOnDevice.
  static constexpr int64_t kFewTokens = 8;
  /// Fetch for a few tokens whose ids, [tokens, top_k], are in device memory, like `hidden`
  /// [hidden] of one token and slot_ids. Missing experts are loaded without the host if all experts
  /// are in pinned memory, the layer has a slot for each id, and the device supports the strategy.
  Result FetchOnDevice(int layer, int64_t tokens, const int32_t* ids, const float* hidden,
                       int32_t* slot_ids, moert_slots* slots, std::string* error,
                       const CpuRows& shared = {});
  /// Opens the step in which recorded layer calls run. kTooMany: not possible now, and recordings
  /// are void.
  Result BeginRecorded(int64_t tokens, std::string* error);
  /// The recorded calls have been launched: the next layer call begins another step.
  void EndRecorded() { layer_ = INT_MAX; }
  /// Another number than at an earlier time: recordings of that time are void.
  int64_t generation() const { return generation_; }
  /// Whether the CPU may share misses.
  bool shares() const { return product_ != nullptr; }
  /// A layer call on the device begins.
  void BeginCall(int layer, int64_t tokens);
  /// The CPU's product if it shares the misses of a call of this many tokens; else null.
  CpuProduct* product(int64_t tokens) const {
    const bool pays = tokens > kFewTokens ? prompt_trial_.shares()
                      : tokens == 1       ? !trial_ || trial_->shares()
                                          : true;
    return pays ? product_.get() : nullptr;
  }
  /// After the products of a FetchOnDevice with `shared`: writes the rows of pairs that the CPU has
  /// computed to `rows`, [pairs, hidden] on the device, in the order of its stream.
  bool TakeCpuRows(float* rows, int64_t pairs, std::string* error);
  /// Whether slots hold nearly all experts.
  bool holds_most() const { return Held() >= 0.75; }
  /// Whether the experts of a single token were kTooMany: then no call's experts fit.
  bool small() const { return small_; }
  void set_small() { small_ = true; }
  /// Makes room for Stage of a layer. False: there is none (reported), or copies have failed.
  bool Reserve(int layer);
  /// Makes Reserve fail from now on.
  void GiveUpStaging(const std::string& error);
  /// Loads experts into the layer's place beside the cache, each in the slot of its number, in the
  /// order of the GPU's stream. False: `error` says why.
  bool Stage(int layer, std::span<const int32_t> experts, std::string* error);
  Staging* staging() { return &staging_; }
  StreamPlan* plan() { return &plan_; }
  /// The experts of a long call that the CPU is to compute, possibly none; call it after Reserve.
  /// `pairs`: by expert.
  std::vector<int32_t> TakeForCpu(int layer, int64_t tokens, bool streams,
                                  std::span<const int32_t> pairs);
  /// The likely experts of the next layer that are to be staged ahead.
  std::vector<int32_t> Ahead(int layer, int64_t tokens);
  /// Computes the CPU's pairs, after Stage of their layer.
  bool Multiply(int layer, const CpuPairs& pairs, std::string* error);
  /// Counts the host's time of a layer call of few tokens, for the statistics.
  void CountCall(std::chrono::nanoseconds host) {
    ++calls_;
    host_ += host;
  }

  /// Bytes of slots for all experts, and the budget for all that the library holds.
  int64_t all_bytes() const { return all_bytes_; }
  int64_t budget_bytes() const { return budget_bytes_; }
  /// Sets another budget, between two tokens, in bytes or, with 0, as a share of the experts.
  /// False: `error` says why, and the old budget stays.
  bool SetBudget(int64_t bytes, double fraction, std::string* error);
  /// The GPU's memory if the experts are there, else RAM.
  MemoryNow Memory() const;
  /// Memory that a budget leaves free if the user named none; 0: the user named one.
  int64_t reserve() const { return reserve_; }
  /// "hits 812 of 1024, ...".
  std::string Statistics() const;
  /// All statistics in Prometheus' format.
  std::string Metrics(const std::string& label) const;

 private:
  explicit Store(const std::vector<int>& experts) : plan_(experts), prompt_share_(experts) {}
  // By expert of a layer: 1: in a slot. All are 1 if no caller needs to know what is missing.
  std::vector<uint8_t> InSlots(int layer) const;
  // Times the copies of experts that cross the link, if there are enough of them.
  void BeginTiming(int layer, std::span<const int32_t> experts);
  void EndTiming();
  // Copies experts of a layer, each to the slot of its number, into device memory of `slots->slots`
  // strides. `to` null: only returns that size in `slots`.
  bool CopyLayer(int layer, std::span<const int32_t> experts, void* to, moert_slots* slots,
                 std::string* error);
  // `rows`: rows of ids.
  bool BeginStep(int layer, int64_t rows, std::string* error);
  // Fills the slots with some experts, so that the first prompt finds them there.
  void Fill(const std::vector<Layer>& layers, double share);
  Result DoFetch(int layer, const moert_fetch& fetch, moert_slots* slots, std::string* error);
  moert_code OpenStep(int64_t rows, std::string* error);
  // Ends the step; the next layer call begins a new one.
  void EndStep();
  // The share of the experts that slots hold.
  double Held() const;

  moert_engine* engine_ = nullptr;
  moert_step* step_ = nullptr;
  int layer_ = -1;  // of the last fetch in this step
  int64_t rows_ = 1;
  bool held_ = false;
  Gpu* gpu_ = nullptr;
  std::vector<int> top_k_;
  std::shared_ptr<CpuProduct> product_;
  PromptTrial prompt_trial_;
  std::optional<ShareTrial> trial_;  // where calls need no CPU: all experts are pinned
  int64_t hidden_ = 0;
  int64_t all_bytes_ = 0;
  int64_t budget_bytes_ = 0;
  int64_t fixed_bytes_ = 0;              // of a budget, that is not of slots
  int64_t least_bytes_ = 0;              // the smallest legal budget
  int64_t reserve_ = 0;                  // see reserve()
  int64_t most_bytes_ = 0, useful_ = 0;  // the largest one; that of all experts, if that is less
  bool staged_ = true;                   // unless it was refused
  bool small_ = false;
  int64_t generation_ = 0;
  int64_t beside_ = 0;  // experts that Stage has brought
  int64_t calls_ = 0;
  std::chrono::nanoseconds host_{0};
  Staging staging_;
  StreamPlan plan_;
  PromptShare prompt_share_;
  int64_t timed_ = 0;   // experts between the marks of copies
  int64_t by_cpu_ = 0;  // experts that Multiply has computed
  bool gates_ = false;  // of the layers, for strategies that predict by the next one
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_STORE_H_
