// Decides which experts of a long batch the CPU computes while the link brings others.
//
// Both sides should end together. The link takes the same time for each expert, the CPU less for
// one with few pairs: it takes those with the fewest pairs among the experts that would cross the
// link. The times of both are measured continuously. If the CPU would not help, it takes no
// experts, except for a few now and then to measure again.
#ifndef MOERT_EXAMPLES_GGML_BACKEND_PROMPT_SHARE_H_
#define MOERT_EXAMPLES_GGML_BACKEND_PROMPT_SHARE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moert_ggml {

/// A pair is a token and one of its experts. Not thread-safe.
class PromptShare {
 public:
  using Time = std::chrono::nanoseconds;

  /// `experts`: of each layer.
  explicit PromptShare(const std::vector<int>& experts);

  struct Call {
    int layer = 0;
    int64_t tokens = 0;
    bool streams = false;               // the next layer's experts come meanwhile
    std::span<const int32_t> pairs;     // by expert; 0: not named
    std::span<const uint8_t> in_slots;  // by expert; needs no link
    std::span<const uint8_t> staged;    // likewise, of the first ones: brought ahead
  };
  /// Begins a layer call: returns the experts that the CPU is to compute.
  std::vector<int32_t> Take(const Call& call, Time now);
  /// Whether the call gains by that; else its purpose is to measure the CPU.
  bool helps() const { return helps_; }
  /// The likely experts of the next layer that are to be loaded before the layer names them.
  std::vector<int32_t> Ahead(int layer, int64_t tokens, std::span<const int32_t> likely,
                             std::span<const uint8_t> in_slots) const;

  /// The link has brought this many experts in that time.
  void Brought(int64_t experts, Time took);
  /// The CPU has computed the experts from Take. `late`: the link had not brought the others yet.
  void Computed(int64_t experts, int64_t pairs, Time took, bool late);

 private:
  struct Candidate {
    int32_t expert = 0;
    double pairs = 0;
  };
  /// Moves the CPU's candidates to the front and returns their number. `brought`: experts that
  /// cross the link beside the candidates.
  size_t Split(std::vector<Candidate>* candidates, int64_t brought, bool streams) const;
  size_t Probe(const std::vector<Candidate>& candidates, int64_t brought);
  void EndLayer(int layer, bool streams, Time now);

  // Nanoseconds.
  double link_ = -1;  // of an expert; < 0: not known
  double expert_ = -1, pair_ = 0;
  double rest_ = 0;  // of a layer, that the CPU has nothing to do in and the link has
  bool rest_known_ = false;
  // Sums over the CPU's jobs, older ones with less weight: products of experts, pairs and time.
  double ee_ = 0, ep_ = 0, pp_ = 0, et_ = 0, pt_ = 0;

  bool helps_ = false;
  int calls_ = 0;  // without the CPU
  int probe_after_ = 0;
  // The last call.
  int layer_ = -1;
  Time begin_{0}, took_{0};
  bool late_ = false;
  double mean_pairs_ = 1;  // of an expert

  struct Layer {
    std::vector<int32_t> pairs;
    int64_t tokens = 0;
  };
  std::vector<Layer> layers_;  // as they were named last
};

}  // namespace moert_ggml

#endif  // MOERT_EXAMPLES_GGML_BACKEND_PROMPT_SHARE_H_
