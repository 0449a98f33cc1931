// The account of config.json: each field is read, known to change nothing, or refused by name.
#ifndef MOERT_LIB_CHECKPOINT_CONFIG_ACCOUNT_H_
#define MOERT_LIB_CHECKPOINT_CONFIG_ACCOUNT_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "model/config_fields.h"
#include "moert/offline/hf_config.h"

namespace moert {

inline constexpr char kOfTheHost[] = "of the rest of the model, which the host computes";

/// The object that the fields belong to.
enum class FieldScope {
  kModel,
  kExperts,       // of which only the MoE blocks are read
  kAround,        // around the language model's own object
  kRope,          // rope_parameters, rope_scaling
  kQuantization,  // quantization_config
};

/// Adds the fields that were not read to `unused`, with `prefix` before their names. Fails, in
/// `fields`, for a field that may change what is computed.
void AccountForFields(FieldScope scope, const std::string& prefix, ConfigFields& fields,
                      std::vector<UnusedField>* unused);

/// Marks these fields, if present, as read and unused.
void WithoutEffect(ConfigFields& fields, std::initializer_list<const char*> keys, const char* why,
                   std::vector<UnusedField>* unused);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_CONFIG_ACCOUNT_H_
