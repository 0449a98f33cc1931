// A scheme and options as a search on a device is told them.
#ifndef MOERT_LIB_OFFLINE_FIT_FORMS_H_
#define MOERT_LIB_OFFLINE_FIT_FORMS_H_

#include <optional>

#include "kernels/cuda/offline/gptq_math.h"
#include "kernels/cuda/offline/hqq_math.h"
#include "kernels/cuda/offline/rtn_math.h"
#include "moert/scheme.h"
#include "offline/hqq.h"
#include "offline/rtn.h"

namespace moert {

/// Makes the form of groups of at most `values`. Both: none where schemes or options are not what
/// devices know.
std::optional<cuda::RangeForm> MakeRangeForm(const Scheme& scheme, int64_t values,
                                             const RtnOptions& options);
std::optional<cuda::HqqForm> MakeHqqForm(const Scheme& scheme, const HqqOptions& options);

/// How weights are rounded under a scale, of any scheme.
cuda::RoundingForm MakeRoundingForm(const Scheme& scheme);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_FIT_FORMS_H_
