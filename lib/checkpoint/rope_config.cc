#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "checkpoint/config_account.h"
#include "checkpoint/decoder_config.h"

namespace moert {
namespace {

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr int64_t kMaxPositions = int64_t{1} << 31;

std::optional<RopeKind> ParseKind(const std::string& name) {
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "llama3") return RopeKind::kLlama3;
  if (name == "yarn") return RopeKind::kYarn;
  if (name == "proportional") return RopeKind::kProportional;
  if (name == "longrope" || name == "su") return RopeKind::kLongRope;  // su: its older name
  return std::nullopt;
}

void ReadYarn(ConfigFields& scaling, RopeConfig& rope) {
  rope.beta_fast = scaling.Real("beta_fast", 1e-3, kMaxFactor, 32);
  rope.beta_slow = scaling.Real("beta_slow", 1e-3, kMaxFactor, 1);
  rope.mscale = scaling.Real("mscale", 0, kMaxFactor, 0);
  rope.mscale_all_dim = scaling.Real("mscale_all_dim", 0, kMaxFactor, 0);
  rope.truncate = scaling.Bool("truncate", true);
  rope.attention_factor = scaling.Real("attention_factor", 0, kMaxFactor, 0);
  if (rope.theta <= 1.0) scaling.Fail("rope_theta", "legal with yarn is a number above 1");
}

void ReadLongRope(ConfigFields& scaling, int64_t half, RopeConfig& rope) {
  rope.short_factor = scaling.Reals("short_factor", 1e-6, kMaxFactor, half);
  rope.long_factor = scaling.Reals("long_factor", 1e-6, kMaxFactor, half);
  rope.short_mscale = scaling.Real("short_mscale", 0, kMaxFactor, 0);
  rope.long_mscale = scaling.Real("long_mscale", 0, kMaxFactor, 0);
  rope.attention_factor = scaling.Real("attention_factor", 0, kMaxFactor, 0);
}

// The fields by which published configurations state how much of a head is rotated; rotary_dim
// counts channels.
int64_t ReadDim(ConfigFields& fields, ConfigFields* scaling, const RopeDefaults& defaults,
                std::vector<UnusedField>* unused) {
  const int64_t head_dim = defaults.head_dim;
  constexpr char kPart[] = "partial_rotary_factor";
  if (fields.Has("rotary_dim")) {
    const int64_t dim = fields.Int("rotary_dim", 2, head_dim);
    if (dim % 2 != 0) fields.Fail("rotary_dim", "legal is an even number");
    WithoutEffect(fields, {kPart}, "rotary_dim is there, too", unused);
    return dim;
  }
  double partial = fields.Real(kPart, 0, 1, defaults.partial);
  if (scaling != nullptr) partial = scaling->Real(kPart, 0, 1, partial);
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * partial);
  if (dim < 2 || dim % 2 != 0) {
    fields.Fail(
        kPart,
        fmt::format("legal is what makes an even number of at least 2 of head_dim ({})", head_dim));
  }
  return dim;
}

// Reads everything but `dim` from the object that describes the scaling.
void ReadScaling(ConfigFields& fields, ConfigFields& scaling, int64_t max_positions,
                 RopeConfig& rope) {
  rope.theta = scaling.Real("rope_theta", 1.0, kMaxTheta, rope.theta);
  const std::string name = scaling.String("rope_type", scaling.String("type", "default"));
  const double alpha = name == "dynamic" ? scaling.Real("alpha", 0, kMaxTheta, 0) : 0;
  if (alpha > 0 && rope.dim > 2) {  // Hunyuan: only the base is larger, at any length
    const auto dim = static_cast<double>(rope.dim);
    rope.theta *= std::pow(alpha, dim / (dim - 2));
    return;
  }
  const auto kind = ParseKind(name);
  if (!kind) {
    scaling.Fail(
        scaling.Has("rope_type") ? "rope_type" : "type",
        "legal are default, linear, llama3, yarn, longrope, proportional, dynamic with alpha");
  }
  rope.kind = kind.value_or(RopeKind::kDefault);
  if (rope.kind == RopeKind::kProportional) {
    rope.factor = scaling.Real("factor", 1.0, kMaxFactor, 1.0);
    return;
  }
  if (rope.kind != RopeKind::kDefault) {
    constexpr char kOriginal[] = "original_max_position_embeddings";
    // Phi's configurations have this field beside the object; it then determines the factor too.
    const int64_t beside = fields.Int(kOriginal, 1, kMaxPositions, 0);
    const int64_t within = scaling.Int(kOriginal, 1, kMaxPositions, beside);
    rope.original_max_positions = within > 0 ? within : max_positions;
    const bool derived = rope.kind == RopeKind::kLongRope && within > 0;
    const double ratio =
        static_cast<double>(max_positions) / static_cast<double>(rope.original_max_positions);
    rope.factor = derived ? ratio : scaling.Real("factor", 1.0, kMaxFactor);
  }
  if (rope.kind == RopeKind::kYarn) ReadYarn(scaling, rope);
  if (rope.kind == RopeKind::kLongRope) ReadLongRope(scaling, rope.dim / 2, rope);
  if (rope.kind == RopeKind::kLlama3) {
    rope.low_freq_factor = scaling.Real("low_freq_factor", 1e-6, kMaxFactor);
    rope.high_freq_factor = scaling.Real("high_freq_factor", 1e-6, kMaxFactor);
    if (rope.high_freq_factor < rope.low_freq_factor) {
      scaling.Fail("high_freq_factor",
                   fmt::format("legal is low_freq_factor ({}) or more", rope.low_freq_factor));
    }
  }
}

// The objects of rope_parameters by layer type, for `type` or for all types that occur; empty if
// one object serves all.
std::vector<JsonMember> ByLayerType(ConfigFields& fields, const char* key, JsonValue object,
                                    const std::string& type) {
  std::vector<JsonMember> all, used;
  for (const JsonMember& member : object.members()) {
    if (member.value.is_object()) all.push_back(member);
  }
  if (!type.empty()) {
    for (const JsonMember& member : all) {
      if (*member.key.AsString() == type) return {member};
    }
    if (object.size() > 0) fields.Fail(key, fmt::format("legal is one with an object {}", type));
    return {};
  }
  const auto types = fields.Find("layer_types");
  if (!types) return all;
  for (const JsonMember& member : all) {
    const std::string name = *member.key.AsString();
    for (const JsonValue used_type : types->elements()) {
      if (!used_type.Is(name)) continue;
      used.push_back(member);
      break;
    }
  }
  return used.empty() ? all : used;
}

// Whether two objects are equal, whatever the order of their members.
bool Same(JsonValue a, JsonValue b) {
  if (a.size() != b.size()) return false;
  for (const JsonMember& member : a.members()) {
    const auto other = b.Find(*member.key.AsString());
    if (!other) return false;
    const auto x = member.value.AsDouble(), y = other->AsDouble();
    if (x && y ? *x != *y : member.value.text() != other->text()) return false;
  }
  return true;
}

}  // namespace

RopeConfig ReadRopeConfig(ConfigFields& fields, const RopeDefaults& defaults,
                          std::vector<UnusedField>* unused, const std::string& type) {
  RopeConfig rope;
  rope.theta = fields.Real(defaults.theta_key, 1.0, kMaxTheta, defaults.theta);
  const bool newer = fields.Has("rope_parameters");
  const char* const key = newer ? "rope_parameters" : "rope_scaling";
  auto object = fields.Find(key);
  if (fields.Has("rope_scaling") && newer) {
    unused->push_back({"rope_scaling", "rope_parameters is there, too"});
  }
  if (!object) {
    rope.dim = ReadDim(fields, nullptr, defaults, unused);
    return rope;
  }
  if (!object->is_object()) {
    fields.Fail(key, "legal is an object");
    return rope;
  }
  const std::vector<JsonMember> types = ByLayerType(fields, key, *object, type);
  for (const JsonMember& other : types) {
    if (Same(types[0].value, other.value)) continue;
    fields.Fail(key,
                fmt::format("legal is the same for all types of layers: those of {} and {} differ",
                            *types[0].key.AsString(), *other.key.AsString()));
  }
  std::string name = key;
  if (!types.empty()) {
    object = types[0].value;
    name += "." + *types[0].key.AsString();
  }
  ConfigFields scaling(*object, name);
  rope.dim = ReadDim(fields, &scaling, defaults, unused);
  ReadScaling(fields, scaling, defaults.max_positions, rope);
  if (rope.kind == RopeKind::kProportional) {
    rope.turning = std::exchange(rope.dim, defaults.head_dim) / 2;
  }
  AccountForFields(FieldScope::kRope, name + ".", scaling, unused);
  if (!scaling.status().ok()) fields.Fail(key, std::string(scaling.status().message()));
  return rope;
}

}  // namespace moert
