#include "host/blocks/rope.h"

#include <algorithm>
#include <cmath>

namespace moert::host {
namespace {

constexpr double kPi = 3.14159265358979323846;

// theta^(2i / dim), rounded to fp32 as the reference implementations do: the rounding is noticeable
// at position 1000.
std::vector<float> Wavelengths(double theta, int64_t half) {
  std::vector<float> out(half);
  for (int64_t i = 0; i < half; ++i) {
    const double exponent = static_cast<float>(2 * i) / static_cast<float>(2 * half);
    out[i] = static_cast<float>(std::pow(theta, exponent));
  }
  return out;
}

// Llama 3.1: wavelengths beyond the original context are stretched by factor, those well within it
// are left, with a linear transition between. There is no transition where both factors are the
// same (Llama 4).
float Llama3(const RopeConfig& c, float frequency) {
  const double original = static_cast<double>(c.original_max_positions);
  const double wavelength = 2 * kPi / frequency;
  if (wavelength < original / c.high_freq_factor) return frequency;
  if (wavelength >= original / c.low_freq_factor) return static_cast<float>(frequency / c.factor);
  const double smooth =
      (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / c.factor + smooth * frequency);
}

// YaRN Sec. 3.2: between the dimensions that turn beta_fast and beta_slow times over the original
// context, a ramp from the frequency itself to the one divided by factor.
void Yarn(const RopeConfig& c, int64_t half, std::vector<float>* frequencies) {
  const double dim = static_cast<double>(2 * half);
  const auto correction = [&](double rotations) {
    const double original = static_cast<double>(c.original_max_positions);
    return dim * std::log(original / (rotations * 2 * kPi)) / (2 * std::log(c.theta));
  };
  double low = correction(c.beta_fast), high = correction(c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < half; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    float& f = (*frequencies)[i];
    f = static_cast<float>(f / c.factor * ramp + f * (1 - ramp));
  }
}

// YaRN Sec. 3.4, with DeepSeek's two multipliers.
double YarnFactor(const RopeConfig& c) {
  if (c.attention_factor > 0) return c.attention_factor;
  const auto scale = [&](double multiplier) {
    return c.factor <= 1 ? 1.0 : 0.1 * multiplier * std::log(c.factor) + 1.0;
  };
  if (c.mscale > 0 && c.mscale_all_dim > 0) return scale(c.mscale) / scale(c.mscale_all_dim);
  return scale(1.0);
}

double LongRopeFactor(const RopeConfig& c, double mscale) {
  if (mscale > 0) return mscale;
  if (c.attention_factor > 0) return c.attention_factor;
  if (c.factor <= 1 || c.original_max_positions <= 1) return 1.0;
  return std::sqrt(1 +
                   std::log(c.factor) / std::log(static_cast<double>(c.original_max_positions)));
}

void TurnPair(float cos, float sin, float* a, float* b) {
  const float x = *a, y = *b;
  *a = x * cos - y * sin;
  *b = y * cos + x * sin;
}

}  // namespace

Rope::Rope(const RopeConfig& config)
    : half_(config.dim / 2),
      interleaved_(config.interleaved),
      original_positions_(config.original_max_positions) {
  const std::vector<float> wavelengths = Wavelengths(config.theta, half_);
  Set set;
  for (const float w : wavelengths) set.frequencies.push_back(1.0f / w);
  switch (config.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      for (float& f : set.frequencies) f = static_cast<float>(f / config.factor);
      break;
    case RopeKind::kProportional:
      for (float& f : set.frequencies) f = static_cast<float>(f / config.factor);
      std::fill(set.frequencies.begin() + config.turning, set.frequencies.end(), 0.0f);
      break;
    case RopeKind::kLlama3:
      for (float& f : set.frequencies) f = Llama3(config, f);
      break;
    case RopeKind::kYarn:
      Yarn(config, half_, &set.frequencies);
      set.attention_factor = static_cast<float>(YarnFactor(config));
      break;
    case RopeKind::kLongRope: {
      Set beyond = set;
      for (int64_t i = 0; i < half_; ++i) {
        set.frequencies[i] = 1.0f / (static_cast<float>(config.short_factor[i]) * wavelengths[i]);
        beyond.frequencies[i] = 1.0f / (static_cast<float>(config.long_factor[i]) * wavelengths[i]);
      }
      set.attention_factor = static_cast<float>(LongRopeFactor(config, config.short_mscale));
      beyond.attention_factor = static_cast<float>(LongRopeFactor(config, config.long_mscale));
      sets_ = {std::move(set), std::move(beyond)};
      return;
    }
  }
  sets_ = {std::move(set)};
}

void Rope::Extend(int64_t length) {
  for (Set& set : sets_) {
    int64_t position = static_cast<int64_t>(set.table.size()) / (2 * half_);
    if (position >= length) continue;
    set.table.resize(length * 2 * half_);
    for (; position < length; ++position) {
      float* const row = set.table.data() + position * 2 * half_;
      for (int64_t i = 0; i < half_; ++i) {
        const float angle = static_cast<float>(position) * set.frequencies[i];
        row[i] = std::cos(angle) * set.attention_factor;
        row[half_ + i] = std::sin(angle) * set.attention_factor;
      }
    }
  }
}

void Rope::Rotate(int set, int64_t position, bool interleaved, float* x) const {
  Turn(set, position, interleaved, 1.0f, x);
}

void Rope::RotateBack(int set, int64_t position, float* x) const {
  Turn(set, position, interleaved_, -1.0f, x);
}

void Rope::Turn(int set, int64_t position, bool interleaved, float sign, float* x) const {
  const float* const cos = sets_[set].table.data() + position * 2 * half_;
  const float* const sin = cos + half_;
  if (interleaved) {
    for (int64_t i = 0; i < half_; ++i) TurnPair(cos[i], sign * sin[i], x + 2 * i, x + 2 * i + 1);
  } else {
    for (int64_t i = 0; i < half_; ++i) TurnPair(cos[i], sign * sin[i], x + i, x + half_ + i);
  }
}

}  // namespace moert::host
