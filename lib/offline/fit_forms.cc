#include "offline/fit_forms.h"

#include "offline/rtn_candidates.h"
#include "offline/rtn_lane_fit.h"

namespace moert {
namespace {

using cuda::HqqForm;
using cuda::RangeForm;

static_assert(RangeForm::kBf16 == static_cast<int>(ScaleType::kBF16) &&
              RangeForm::kF16 == static_cast<int>(ScaleType::kF16) &&
              RangeForm::kF32 == static_cast<int>(ScaleType::kF32) &&
              RangeForm::kPowersOfTwo == static_cast<int>(ScaleType::kE8M0) &&
              RangeForm::kE4M3 == static_cast<int>(ScaleType::kE4M3));

RangeForm::Codes CodesOf(const Scheme& scheme) {
  if (scheme.fp8) return RangeForm::kF8;
  if (scheme.fp4) return RangeForm::kF4;
  if (scheme.zero_points) return RangeForm::kZeroPoints;
  return scheme.symmetric ? RangeForm::kSymmetric : RangeForm::kOffsets;
}

}  // namespace

std::optional<RangeForm> MakeRangeForm(const Scheme& scheme, int64_t values,
                                       const RtnOptions& options) {
  if (options.norm != RtnOptions{}.norm || options.grid < 1 || options.grid > RangeForm::kMost) {
    return std::nullopt;
  }
  RangeForm form{};
  form.codes = CodesOf(scheme);
  form.scales = static_cast<RangeForm::Scales>(scheme.scales);
  const int bits = scheme.weight_bits;
  form.span = static_cast<float>((1 << bits) - 1);
  if (form.codes == RangeForm::kSymmetric) form.middle = static_cast<float>(1 << (bits - 1));
  form.steps = form.codes == RangeForm::kSymmetric ? form.middle - 1 : form.span;
  form.largest = form.floats() ? LargestFloat(scheme) : 1;
  form.candidates = options.grid;
  for (int i = 0; i < options.grid; ++i) form.shares[i] = RangeShare(options, i, options.grid);
  const SumSlack slack = SlackOfSums(scheme, values);
  form.relative = slack.relative;
  form.added = slack.added;
  return form;
}

std::optional<HqqForm> MakeHqqForm(const Scheme& scheme, const HqqOptions& options) {
  if (!HasPlainCodes(scheme) || options.select != 2 || options.scales < 2 ||
      options.scales > HqqForm::kMost || options.iterations < 1 ||
      options.iterations > HqqForm::kMost) {
    return std::nullopt;
  }
  HqqForm form{};
  form.symmetric = scheme.symmetric;
  form.top = static_cast<float>((1 << scheme.weight_bits) - 1);
  form.middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  form.candidates = options.scales;
  form.iterations = options.iterations;
  for (int i = 0; i < options.scales; ++i) form.shares[i] = HqqShare(options, i);
  const HqqSteps steps = HqqStepsOf(options);
  for (int i = 0; i < options.iterations; ++i) {
    form.thresholds[i] = steps.thresholds[i];
  }
  return form;
}

cuda::RoundingForm MakeRoundingForm(const Scheme& scheme) {
  cuda::RoundingForm form{};
  form.codes = CodesOf(scheme);
  form.largest = 1;
  if (form.floats()) {
    form.largest = LargestFloat(scheme);
  } else {
    form.top = static_cast<float>((1 << scheme.weight_bits) - 1);
    form.middle = static_cast<float>(1 << (scheme.weight_bits - 1));
  }
  return form;
}

}  // namespace moert
