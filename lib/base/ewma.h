// Ewma: an exponentially weighted running mean, and the constants of all those in the library.
#ifndef MOERT_LIB_BASE_EWMA_H_
#define MOERT_LIB_BASE_EWMA_H_

#include <algorithm>

namespace moert {

struct EwmaOptions {
  /// The weight of a sample. The first sample is taken as the mean.
  double weight = 0;
  /// Not 0: replaces `weight`; the first `even` samples count equally, later ones with 1 / even.
  int even = 0;
  /// Not 0: after `trusted` samples, a sample is cut to at most `outlier` times the mean.
  double outlier = 0;
  int trusted = 1;
};

/// All running means of the library. Changing one changes the decisions of prefetching and
/// placement.
namespace running_mean {

/// Measured over modelled time of a transfer.
inline constexpr EwmaOptions kLinkScale{.weight = 0.05};
/// Measured over modelled time of experts that a CPU beside the fast tier computes. An interruption
/// of a thread for some ms says nothing about the CPU's rate.
inline constexpr EwmaOptions kCpuScale{.weight = 0.05, .outlier = 2};
/// The weight of a sample of that CPU after it was passed over for a while, which is rare.
inline constexpr double kCpuTrialWeight = 0.5;
/// The weight of a 0 that is added each time the CPU is passed over, so that it is tried again.
inline constexpr double kCpuForget = 1.0 / 256;
/// Measured and modelled times of a step's jobs for that CPU, and their products.
inline constexpr EwmaOptions kJobTime{.weight = 0.02};
/// Time from a layer's routing to the next layer's, and from its last load to the next routing.
inline constexpr EwmaOptions kWindow{.weight = 0.1};
/// Share of a layer's lookups that were predicted.
inline constexpr EwmaOptions kPredictionRecall{.weight = 0.02};
/// Time of a step with predictions or without. An interruption of the process says nothing about
/// these costs.
inline constexpr EwmaOptions kStepTime{.even = 16, .outlier = 2, .trusted = 4};
/// Time that a host takes in a step to predict the layers' inputs.
inline constexpr EwmaOptions kAsking{.even = 16};
/// Share of late prefetches that the routing used; it drifts with the routing.
inline constexpr EwmaOptions kLateShare{.even = 50};
/// Share of a layer's insertions that a call waits for.
inline constexpr EwmaOptions kDemanded{.weight = 1.0 / 128};
/// Experts that a call inserts into its layer's cache; kept on the host and on devices.
inline constexpr EwmaOptions kInserted{.weight = 1.0 / 64};

}  // namespace running_mean

template <const EwmaOptions& kOptions>
class Ewma {
 public:
  Ewma() = default;
  /// Starts with a guess, which counts like a first sample.
  explicit Ewma(double guess) : mean_(guess), samples_(1) {}

  void Add(double sample) { Add(sample, kOptions.weight); }
  /// Adds a sample with `weight` in place of the options' weight.
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

  /// 0 before the first sample.
  double mean() const { return mean_; }
  bool measured() const { return samples_ > 0; }
  /// The number of samples, counted only as far as it makes a difference.
  int samples() const { return samples_; }

 private:
  double mean_ = 0;
  int samples_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_BASE_EWMA_H_
