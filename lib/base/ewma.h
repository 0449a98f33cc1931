// Ewma: a running mean that forgets, and the constants of every one that the library keeps.
#ifndef MOERT_LIB_BASE_EWMA_H_
#define MOERT_LIB_BASE_EWMA_H_

#include <algorithm>

namespace moert {

struct EwmaOptions {
  /// The weight of a sample; the first one is the mean.
  double weight = 0;
  /// Not 0: in place of `weight`, the first `even` samples count alike and later ones 1 / even.
  int even = 0;
  /// Not 0: once `trusted` samples are in, one counts at most as `outlier` times the mean.
  double outlier = 0;
  int trusted = 1;
};

/// Every running mean of the library. Changing one changes what prefetching and placement decide.
namespace running_mean {

/// Measured over modelled time of a transfer.
inline constexpr EwmaOptions kLinkScale{.weight = 0.05};
/// Measured over modelled time of experts that a CPU beside the fast tier computes. An interruption
/// of a thread for some ms says nothing about the CPU's rate.
inline constexpr EwmaOptions kCpuScale{.weight = 0.05, .outlier = 2};
/// ...a sample of that CPU after it was passed over for a while, which is rare...
inline constexpr double kCpuTrialWeight = 0.5;
/// ...and what its scale loses each time it is passed over, so that it is tried again.
inline constexpr double kCpuForget = 1.0 / 256;
/// Times of a step's jobs for that CPU, measured and modelled, and their products.
inline constexpr EwmaOptions kJobTime{.weight = 0.02};
/// From a layer's routing to the next layer's, and from its last load to there.
inline constexpr EwmaOptions kWindow{.weight = 0.1};
/// Share of a layer's lookups that predictions named.
inline constexpr EwmaOptions kPredictionRecall{.weight = 0.02};
/// Time of a step with predictions or without. An interruption of the process says nothing about
/// these costs.
inline constexpr EwmaOptions kStepTime{.even = 16, .outlier = 2, .trusted = 4};
/// Time of a step in which a host says what the layers' inputs will be.
inline constexpr EwmaOptions kAsking{.even = 16};
/// Share of late prefetches that the routing used. Routing drifts.
inline constexpr EwmaOptions kLateShare{.even = 50};
/// Share of a layer's arrivals that a call waits for.
inline constexpr EwmaOptions kDemanded{.weight = 1.0 / 128};
/// Experts that a layer's calls bring into its cache; host and device keep it.
inline constexpr EwmaOptions kInserted{.weight = 1.0 / 64};

}  // namespace running_mean

template <const EwmaOptions& kOptions>
class Ewma {
 public:
  Ewma() = default;
  /// Begins with a guess, which later samples correct as if it had been measured.
  explicit Ewma(double guess) : mean_(guess), samples_(1) {}

  void Add(double sample) { Add(sample, kOptions.weight); }
  /// `weight` in place of the options'.
  void Add(double sample, double weight) {
    if (kOptions.outlier > 0 && samples_ >= kOptions.trusted) {
      sample = std::min(sample, kOptions.outlier * mean_);
    }
    const int most = kOptions.even > 0 ? kOptions.even : std::max(1, kOptions.trusted);
    const bool first = samples_ == 0;
    samples_ = std::min(samples_ + 1, most);
    if (kOptions.even > 0) {
      mean_ += (sample - mean_) / samples_;
    } else {
      mean_ = first ? sample : mean_ + weight * (sample - mean_);
    }
  }

  /// 0 as long as nothing was measured.
  double mean() const { return mean_; }
  bool measured() const { return samples_ > 0; }
  /// Samples so far; no more are counted than make a difference.
  int samples() const { return samples_; }

 private:
  double mean_ = 0;
  int samples_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_EWMA_H_
