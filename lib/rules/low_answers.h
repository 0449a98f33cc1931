// How much of each request's routing mass low versions may answer, and did answer. The host
// (plan/layer_planner.h) and a device that serves misses (serve_misses.h) use this same arithmetic,
// with bit-identical results.
#ifndef MOERT_LIB_RULES_LOW_ANSWERS_H_
#define MOERT_LIB_RULES_LOW_ANSWERS_H_

#include <cstdint>

#include "rules/host_device.h"

namespace moert {

/// A request's account: the mass that entered its sums, and the mass that was answered low.
struct alignas(16) LowAccount {
  double mass = 0;
  double low = 0;

  MOERT_HOST_DEVICE double Share() const { return mass > 0 ? low / mass : 0; }
};

/// A product that is never fused with an addition, which would round differently.
MOERT_HOST_DEVICE inline double RoundedProduct(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/// `weight` as a share of the mass that the request may still have answered low.
MOERT_HOST_DEVICE inline double LowCost(const LowAccount& account, double weight,
                                        double max_share) {
  constexpr double kNever = 1e9;
  const double left = RoundedProduct(max_share, account.mass) - account.low;
  if (left <= 0) return kNever;
  const double cost = weight / left;
  return cost < kNever ? cost : kNever;
}
/// Whether the request may have `weight` more mass answered low.
MOERT_HOST_DEVICE inline bool MayAnswerLow(const LowAccount& account, double weight,
                                           double max_share) {
  constexpr double kSlack = 1e-9;  // tolerance for rounding
  const double most = RoundedProduct(RoundedProduct(max_share, account.mass), 1 + kSlack);
  return account.low + weight <= most;
}
/// The rule of strategy `graded`. The permitted loss grows with every call, and each miss costs
/// about the same wait. So misses are answered low if they take at most 1 / patience of the
/// permitted loss that is left. If too many do, less is left and fewer qualify. `cost`:
/// MissView::low_cost.
MOERT_HOST_DEVICE inline bool WorthAnsweringLow(float cost, double patience) {
  return cost >= 0 && patience * static_cast<double>(cost) <= 1;
}

/// A call of a layer, and the accounts of its rows.
struct LowCall {
  const int32_t* ids = nullptr;         // [tokens, top_k]; below 0: no expert, no mass
  const float* weights = nullptr;       // likewise
  LowAccount* accounts = nullptr;       // null: nothing is answered low
  const int32_t* account_of = nullptr;  // [tokens]
  int32_t top_k = 1;
  double max_share = 0;

  /// Adds the mass of a row to its account. Called for all rows before the first Take.
  MOERT_HOST_DEVICE void Enter(int64_t row) const {
    LowAccount& account = accounts[account_of[row]];
    account.mass = AddRow(account.mass, row);
  }
  /// If `row` is the first row of its account: adds the mass of all rows of the account, in their
  /// order. So threads may call this for rows in any order and concurrently.
  MOERT_HOST_DEVICE void EnterAccountOf(int64_t row, int64_t rows) const {
    const int32_t account = account_of[row];
    for (int64_t before = 0; before < row; ++before) {
      if (account_of[before] == account) return;
    }
    double mass = accounts[account].mass;
    for (int64_t r = row; r < rows; ++r) {
      if (account_of[r] == account) mass = AddRow(mass, r);
    }
    accounts[account].mass = mass;
  }

  // The functions below take an expert's `count` slots (integers), in their order.

  /// MissView::low_cost of the expert: the largest cost among its requests.
  template <typename Slot>
  MOERT_HOST_DEVICE float Cost(const Slot* slots, int count) const {
    double most = 0;
    for (int i = 0; i < count; ++i) {
      if (!FirstOfAccount(slots, i)) continue;
      const double cost = LowCost(AccountOf(slots[i]), WeightFrom(slots, i, count), max_share);
      most = cost > most ? cost : most;
    }
    return static_cast<float>(most);
  }
  /// Answers the expert low if all its requests stay within the bound. Returns whether it did.
  template <typename Slot>
  MOERT_HOST_DEVICE bool Take(const Slot* slots, int count) const {
    for (int i = 0; i < count; ++i) {
      if (!FirstOfAccount(slots, i)) continue;
      if (!MayAnswerLow(AccountOf(slots[i]), WeightFrom(slots, i, count), max_share)) return false;
    }
    for (int i = 0; i < count; ++i) {
      if (FirstOfAccount(slots, i)) AccountOf(slots[i]).low += WeightFrom(slots, i, count);
    }
    return true;
  }
  /// The largest share that any request of the expert has reached.
  template <typename Slot>
  MOERT_HOST_DEVICE double WorstShare(const Slot* slots, int count) const {
    double worst = 0;
    for (int i = 0; i < count; ++i) {
      const double share = AccountOf(slots[i]).Share();
      worst = share > worst ? share : worst;
    }
    return worst;
  }

 private:
  MOERT_HOST_DEVICE double AddRow(double mass, int64_t row) const {
    for (int64_t slot = row * top_k; slot < (row + 1) * top_k; ++slot) {
      if (ids[slot] >= 0) mass += static_cast<double>(weights[slot]);
    }
    return mass;
  }
  MOERT_HOST_DEVICE LowAccount& AccountOf(int32_t slot) const {
    return accounts[account_of[slot / top_k]];
  }
  template <typename Slot>
  MOERT_HOST_DEVICE bool FirstOfAccount(const Slot* slots, int i) const {
    for (int j = 0; j < i; ++j) {
      if (account_of[slots[j] / top_k] == account_of[slots[i] / top_k]) return false;
    }
    return true;
  }
  /// The expert's mass in slot i and in later slots of the same account.
  template <typename Slot>
  MOERT_HOST_DEVICE double WeightFrom(const Slot* slots, int i, int count) const {
    const int32_t account = account_of[slots[i] / top_k];
    double weight = 0;
    for (int j = i; j < count; ++j) {
      if (account_of[slots[j] / top_k] == account) weight += static_cast<double>(weights[slots[j]]);
    }
    return weight;
  }
};

}  // namespace moert

#endif  // MOERT_LIB_RULES_LOW_ANSWERS_H_
