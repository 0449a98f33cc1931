// Cholesky's factorization of a symmetric matrix.
#ifndef MOERT_LIB_OFFLINE_CHOLESKY_H_
#define MOERT_LIB_OFFLINE_CHOLESKY_H_

#include <cstdint>

#include "offline/dense_lanes.h"

namespace moert {

/// a: [k, k] row-major, of which only the lower triangle is read; it becomes the factor, and what
/// is above it has no meaning. False if the matrix is not positive definite.
bool FactorCholesky(int64_t k, double* a, const DenseLanes& lanes = *DenseLaneSets()[0]);

}  // namespace moert

#endif  // MOERT_LIB_OFFLINE_CHOLESKY_H_
