// Rotary position embeddings as config.json describes them: rope_theta, and rope_scaling or the one
// object rope_parameters that newer exporters write.
#ifndef MOERT_OFFLINE_ROPE_CONFIG_H_
#define MOERT_OFFLINE_ROPE_CONFIG_H_

#include <cstdint>
#include <vector>

namespace moert {

enum class RopeKind : int32_t {
  kDefault = 0,
  kLinear = 1,    // every frequency divided by factor
  kLlama3 = 2,    // the low ones divided by factor, a smooth transition (Llama 3.1)
  kYarn = 3,      // YaRN (arXiv 2309.00071)
  kLongRope = 4,  // LongRoPE (arXiv 2402.13753): a factor a frequency, one set for short contexts
  kProportional = 5,  // only the first pairs rotate, at the frequencies that they have among all
};

/// Fields that a kind does not have keep their defaults.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  int64_t dim = 0;           // the first channels of a head, which are rotated; even
  bool interleaved = false;  // a pair is channels 2i and 2i + 1, else i and i + dim / 2
  int64_t turning = 0;       // kProportional: pairs that rotate, of dim / 2
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_positions = 0;                // of the pretraining; llama3, yarn, longrope
  double low_freq_factor = 0, high_freq_factor = 0;  // kLlama3
  double beta_fast = 32, beta_slow = 1;              // kYarn
  double mscale = 0, mscale_all_dim = 0;             // kYarn; 0: not given
  bool truncate = true;                              // kYarn: round the correction range
  double attention_factor = 0;  // kYarn, kLongRope: what cos and sin are scaled by; 0: not given
  std::vector<double> short_factor = {}, long_factor = {};  // kLongRope: [dim / 2]
  double short_mscale = 0, long_mscale = 0;  // kLongRope: instead of attention_factor; 0: not given

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

}  // namespace moert

#endif  // MOERT_OFFLINE_ROPE_CONFIG_H_
