#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "checkpoint/config_account.h"
#include "checkpoint/decoder_config.h"
#include "checkpoint/moe_config.h"

namespace moert {
namespace {

constexpr char kPerLayer[] = "per_layer_config";

struct Heads {
  int64_t head_dim = 0;
  int kv_heads = 0;
  friend bool operator==(const Heads&, const Heads&) = default;
};

bool SeesAll(const HfConfig& config, int64_t layer) {
  if (layer < 0 || layer >= config.num_hidden_layers) return false;
  return config.mixers[layer].kind == MixerKind::kFull;
}

Heads ReadObject(const JsonMember& member, const Heads& others, ConfigFields& fields,
                 const HfConfig& config) {
  const std::string key = *member.key.AsString();
  int64_t layer = -1;
  if (!absl::SimpleAtoi(key, &layer) || !SeesAll(config, layer) || !member.value.is_object()) {
    fields.Fail(kPerLayer, "legal are objects of layers without a window");
    return others;
  }
  ConfigFields object(member.value, fmt::format("{}.{}", kPerLayer, key));
  Heads own;
  own.head_dim = object.Int("head_dim", 1, kMaxHeadDim, others.head_dim);
  own.kv_heads = static_cast<int>(
      object.Int("num_key_value_heads", 1, config.num_attention_heads, others.kv_heads));
  for (const std::string& unread : object.Unasked()) {
    object.Fail(unread.c_str(), "a field that is not read");
  }
  if (!object.status().ok()) fields.Fail(kPerLayer, std::string(object.status().message()));
  return own;
}

// All layers without a window must be present, with the same values.
Heads ReadObjects(JsonValue objects, const Heads& others, ConfigFields& fields,
                  const HfConfig& config) {
  Heads heads = others;
  int64_t found = 0;
  for (const JsonMember& member : objects.members()) {
    const Heads own = ReadObject(member, others, fields, config);
    if (found++ == 0) heads = own;
    if (!(own == heads)) {
      fields.Fail(kPerLayer, "legal is the same for all layers without a window");
    }
  }
  const int64_t full =
      std::count_if(config.mixers.begin(), config.mixers.end(),
                    [](const MixerConfig& mixer) { return mixer.kind == MixerKind::kFull; });
  if (found != full) fields.Fail(kPerLayer, "legal is an object for each layer without a window");
  return heads;
}

}  // namespace

void ReadFullHeads(const FamilyFields& family, HfConfig& config) {
  ConfigFields& fields = family.fields();
  const Heads others = {config.head_dim, config.num_key_value_heads};
  Heads heads = others;
  if (const auto objects = fields.Find(kPerLayer); objects && objects->is_object()) {
    heads = ReadObjects(*objects, others, fields, config);
    for (const char* key : {"full_head_dim", "full_kv_heads"}) {
      const std::string name = family.Present(key);
      if (name.empty()) continue;
      WithoutEffect(fields, {name.c_str()}, "per_layer_config is there, too", &config.unused);
    }
  } else {
    heads.head_dim = family.Int("full_head_dim", 1, kMaxHeadDim, others.head_dim);
    const std::string number = family.Present("full_kv_heads");
    if (!number.empty() && family.Bool("full_kv_heads_if", true)) {
      heads.kv_heads = static_cast<int>(fields.Int(number.c_str(), 1, config.num_attention_heads));
    }
  }
  if (config.num_attention_heads % heads.kv_heads != 0) {
    fields.Fail("num_attention_heads",
                fmt::format("legal is a multiple of the key heads of layers without a window ({})",
                            heads.kv_heads));
  }
  if (heads.head_dim % 2 != 0) {
    fields.Fail("head_dim",
                fmt::format("legal is an even number, also for layers without a window ({})",
                            heads.head_dim));
  }
  config.head_dim = heads.head_dim;
  config.num_key_value_heads = heads.kv_heads;
}

}  // namespace moert
