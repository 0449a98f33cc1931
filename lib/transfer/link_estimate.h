// LinkEstimate: what a transfer takes now: the profile's model, corrected by what was measured.
#ifndef MOERT_LIB_TRANSFER_LINK_ESTIMATE_H_
#define MOERT_LIB_TRANSFER_LINK_ESTIMATE_H_

#include <algorithm>
#include <cstdint>

#include "base/ewma.h"
#include "moert/tools/profile.h"

namespace moert {

/// Called under the engine's lock.
class LinkEstimate {
 public:
  /// `profile` is borrowed.
  explicit LinkEstimate(const HardwareProfile* profile) : profile_(profile) {}

  /// Time the link is busy with a transfer of `bytes`.
  int64_t TransferNs(int64_t bytes) const {
    const int64_t modelled_ns = profile_->TransferNs(bytes);
    if (!scale_.measured()) return modelled_ns;
    return HardwareProfile::WholeNs(scale_.mean() * static_cast<double>(modelled_ns));
  }

  /// A transfer that ran from started_ns to finished_ns. In order of finishing.
  void Observe(int64_t bytes, int64_t started_ns, int64_t finished_ns) {
    // Several readers share the link: what it spent on this transfer is the time since the one
    // before was done.
    const int64_t busy_ns = finished_ns - std::max(started_ns, last_finished_ns_);
    last_finished_ns_ = std::max(last_finished_ns_, finished_ns);
    if (busy_ns < 0) return;
    scale_.Add(static_cast<double>(busy_ns) /
               static_cast<double>(std::max<int64_t>(1, profile_->TransferNs(bytes))));
  }

 private:
  const HardwareProfile* profile_;
  Ewma<running_mean::kLinkScale> scale_;
  int64_t last_finished_ns_ = 0;
};

}  // namespace moert

#endif  // MOERT_LIB_TRANSFER_LINK_ESTIMATE_H_
