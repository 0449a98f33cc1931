// A scheme and options in the form in which a search on a device takes them.
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

/// Makes the form for groups of at most `values`. Both functions return none for schemes or options
/// that devices do not support.
std::optional<cuda::RangeForm> MakeRangeForm(const Scheme& scheme, int64_t values,
                                             const RtnOptions& options);
std::optional<cuda::HqqForm> MakeHqqForm(const Scheme& scheme, const HqqOptions& options);

/// How weights are rounded under a scale, of any scheme.
cuda::RoundingForm MakeRoundingForm(const Scheme& scheme);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_FIT_FORMS_H_
