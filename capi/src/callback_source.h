// A host source whose read is a C callback.
#ifndef MOERT_CAPI_SRC_CALLBACK_SOURCE_H_
#define MOERT_CAPI_SRC_CALLBACK_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "moert.h"
#include "moert/source/expert_source.h"
#include "moert/source/host_source.h"

namespace moert::capi {

/// On failure destroy has not been called and will not be.
absl::StatusOr<std::shared_ptr<const ExpertSource>> MakeCallbackSource(
    std::string name, MoeModelSpec model, const moert_source_callbacks& callbacks);

moert_read ToC(const WeightRead& read);

}  // namespace moert::capi

#endif  // MOERT_CAPI_SRC_CALLBACK_SOURCE_H_
