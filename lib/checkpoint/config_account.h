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

/// Which object the fields are of.
enum class FieldScope {
  kModel,
  kExperts,       // of which only the MoE blocks are read
  kAround,        // around the language model's own object
  kRope,          // rope_parameters, rope_scaling
  kQuantization,  // quantization_config
};

/// Adds the fields that nobody asked for to `unused`, `prefix` before their names. Fails, in
/// `fields`, for one that may change what is computed.
void AccountForFields(FieldScope scope, const std::string& prefix, ConfigFields& fields,
                      std::vector<UnusedField>* unused);

/// Takes these fields, where they are there, as asked for and unused.
void WithoutEffect(ConfigFields& fields, std::initializer_list<const char*> keys, const char* why,
                   std::vector<UnusedField>* unused);

}  // namespace moert

#endif  // MOERT_LIB_CHECKPOINT_CONFIG_ACCOUNT_H_
