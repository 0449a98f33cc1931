// How many experts of a layer a call uses.
#ifndef MOERT_LIB_MODEL_EXPECTED_EXPERTS_H_
#define MOERT_LIB_MODEL_EXPECTED_EXPERTS_H_

#include <algorithm>
#include <cmath>

namespace moert {

/// The expected number of experts that `rows` rows use, if each chooses `top_k` of `experts`
/// uniformly and independently. A host that routes itself may have more choices than there are
/// experts.
inline double ExpectedExperts(double experts, double top_k, double rows) {
  return experts * (1 - std::pow(1 - std::min(top_k, experts) / experts, rows));
}

}  // namespace moert

#endif  // MOERT_LIB_MODEL_EXPECTED_EXPERTS_H_
