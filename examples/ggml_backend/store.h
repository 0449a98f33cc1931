// The experts of one model in libmoert: what the plug-in needs of it, and no more.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_STORE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_STORE_H_

#include <moert.h>

#include <chrono>
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

/// The experts' input of a call on the device, of which the CPU may compute some; null: none.
struct CpuRows {
  const float* x = nullptr;
  int64_t stride = 0;  // floats
};

/// Pairs of a layer call that the CPU computes, expert by expert, in host memory.
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
/// The part of it that is left to the context and everybody else: an eighth, at least 1 GiB, at
/// most a half.
int64_t FreeReserve(int64_t available);
/// The GPU's free memory, or, where `gpu` is null, RAM's; 0: not known.
int64_t FreeBytes(const Gpu* gpu);

/// Not thread-safe: the caller holds its model's lock.
class Store {
 public:
  enum class Result { kOk, kTooMany, kFailed };

  /// On `gpu`, or, where that is null, in RAM. Null: `error` says why.
  static std::unique_ptr<Store> Open(const std::string& name, const std::vector<Layer>& layers,
                                     std::shared_ptr<const GgufModel> file, const Options& options,
                                     Gpu* gpu, std::string* error);
  ~Store();

  /// Makes experts of a layer present until Release: slot_ids receives their slots, `slots` where
  /// slots lie. kTooMany: they do not fit at once, nothing is held. `hidden`: what the router saw,
  /// of one token, or empty.
  Result Fetch(int layer, std::span<const int32_t> experts, std::span<const float> hidden,
               std::span<int32_t> slot_ids, moert_slots* slots, std::string* error);
  void Release();

  // On a device.

  bool on_device() const { return gpu_ != nullptr; }
  /// Experts a token uses in a layer; 0: not known.
  int top_k(int layer) const { return top_k_[static_cast<size_t>(layer)]; }
  /// Most tokens of FetchOnDevice.
  static constexpr int64_t kFewTokens = 8;
  /// Fetch for a few tokens whose ids, [tokens, top_k], lie in device memory, `hidden` [hidden] of
  /// one token and slot_ids too. Missing experts come without the host where all experts are in
  /// pinned memory, the layer has a slot for each id, and the strategy is one that the device
  /// follows.
  Result FetchOnDevice(int layer, int64_t tokens, const int32_t* ids, const float* hidden,
                       int32_t* slot_ids, moert_slots* slots, std::string* error,
                       const CpuRows& shared = {});
  /// Whether the CPU may share what is missing.
  bool shares() const { return product_ != nullptr; }
  /// A call of a layer begins on the device.
  void BeginCall(int layer, int64_t tokens);
  /// The CPU's product, where it shares what a call of so many tokens misses; else null.
  CpuProduct* product(int64_t tokens) const {
    const bool pays = tokens > kFewTokens ? prompt_trial_.shares()
                      : tokens == 1       ? !trial_ || trial_->shares()
                                          : true;
    return pays ? product_.get() : nullptr;
  }
  /// Behind the products of a FetchOnDevice with `shared`: the rows of pairs that the CPU has taken
  /// come to `rows`, [pairs, hidden] on the device, in the order of its stream.
  bool TakeCpuRows(float* rows, int64_t pairs, std::string* error);
  /// Slots hold nearly all experts.
  bool holds_most() const { return Held() >= 0.75; }
  /// The experts of a single token were kTooMany: no call's fit.
  bool small() const { return small_; }
  void set_small() { small_ = true; }
  /// Makes room for Stage of a layer. False: there is none, which has been said, or copies have
  /// failed.
  bool Reserve(int layer);
  /// From now on Reserve fails.
  void GiveUpStaging(const std::string& error);
  /// Brings experts into the layer's place beside the cache, each in the slot of its number, behind
  /// what the GPU's stream has got. False: `error` says why.
  bool Stage(int layer, std::span<const int32_t> experts, std::string* error);
  Staging* staging() { return &staging_; }
  StreamPlan* plan() { return &plan_; }
  /// Experts of a long call for the CPU, none where it shall compute nothing; behind Reserve.
  /// `pairs`: by expert.
  std::vector<int32_t> TakeForCpu(int layer, int64_t tokens, bool streams,
                                  std::span<const int32_t> pairs);
  /// Those to be staged ahead of the experts that the next layer will likely name.
  std::vector<int32_t> Ahead(int layer, int64_t tokens);
  /// The product on the CPU, behind Stage of its layer.
  bool Multiply(int layer, const CpuPairs& pairs, std::string* error);
  /// The host's time of a layer call of few tokens, for the statistics.
  void CountCall(std::chrono::nanoseconds host) {
    ++calls_;
    host_ += host;
  }

  /// Bytes of slots for all experts, and the budget for all that the library holds.
  int64_t all_bytes() const { return all_bytes_; }
  int64_t budget_bytes() const { return budget_bytes_; }
  /// Another budget, between two tokens, in bytes or, with 0, as a share of the experts. False:
  /// `error` says why, and the old one holds.
  bool SetBudget(int64_t bytes, double fraction, std::string* error);
  /// The GPU's memory where the experts are there, else RAM.
  MemoryNow Memory() const;
  /// The part of it that a budget which nobody named leaves free; 0: somebody named one.
  int64_t reserve() const { return reserve_; }
  /// "hits 812 of 1024, ...".
  std::string Statistics() const;
  /// All of them as Prometheus has them.
  std::string Metrics(const std::string& label) const;

 private:
  explicit Store(const std::vector<int>& experts) : plan_(experts), prompt_share_(experts) {}
  // By expert of a layer: 1: in a slot. All: nobody asks what is missing.
  std::vector<uint8_t> InSlots(int layer) const;
  // Has the copies timed of those that cross the link, if they are not few.
  void BeginTiming(int layer, std::span<const int32_t> experts);
  void EndTiming();
  // Experts of a layer, each in the slot of its number, into device memory of `slots->slots`
  // strides. `to` null: says how much that is.
  bool CopyLayer(int layer, std::span<const int32_t> experts, void* to, moert_slots* slots,
                 std::string* error);
  // `rows`: of ids.
  bool BeginStep(int layer, int64_t rows, std::string* error);
  // Fills the slots with some experts: the first prompt finds them there.
  void Fill(const std::vector<Layer>& layers, double share);
  Result DoFetch(int layer, const moert_fetch& fetch, moert_slots* slots, std::string* error);
  // The next layer call starts afresh.
  void EndStep();
  // The part of the experts that slots hold.
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
