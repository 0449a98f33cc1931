#include "host/chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "host/tokenizer_json.h"
#include "moert/tools/env.h"
#include "util/json.h"
#include "util/status_macros.h"

namespace moert::host {
namespace {

// "{bos}" and "{eos}" stand for the model's tokens.
struct Family {
  const char* name;
  const char* marks[3];  // strings that every template of the family contains; null: fewer
  const char* begin;
  const char* before_system;  // null: no place for a system message
  const char* after_system;
  const char* before_user;
  const char* after_user;
  const char* before_answer;
  const char* after_answer;
  const char* cue;       // null: before_answer
  const char* stops[2];  // null: fewer
};

// Families with more specific marks come first.
constexpr Family kFamilies[] = {{"harmony",  // gpt-oss
                                 {"<|start|>", "<|channel|>", "<|message|>"},
                                 "",
                                 "<|start|>system<|message|>",
                                 "<|end|>",
                                 "<|start|>user<|message|>",
                                 "<|end|>",
                                 "<|start|>assistant<|channel|>final<|message|>",
                                 "<|end|>",
                                 "<|start|>assistant",
                                 {"<|return|>", "<|call|>"}},
                                {"chatml",  // Qwen, and many others
                                 {"<|im_start|>", "<|im_end|>"},
                                 "",
                                 "<|im_start|>system\n",
                                 "<|im_end|>\n",
                                 "<|im_start|>user\n",
                                 "<|im_end|>\n",
                                 "<|im_start|>assistant\n",
                                 "<|im_end|>\n",
                                 nullptr,
                                 {"<|im_end|>"}},
                                {"llama3",
                                 {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                                 "{bos}",
                                 "<|start_header_id|>system<|end_header_id|>\n\n",
                                 "<|eot_id|>",
                                 "<|start_header_id|>user<|end_header_id|>\n\n",
                                 "<|eot_id|>",
                                 "<|start_header_id|>assistant<|end_header_id|>\n\n",
                                 "<|eot_id|>",
                                 nullptr,
                                 {"<|eot_id|>"}},
                                {"deepseek",  // V2.5, V3, R1
                                 {"<｜User｜>", "<｜Assistant｜>"},
                                 "{bos}",
                                 "",
                                 "",
                                 "<｜User｜>",
                                 "",
                                 "<｜Assistant｜>",
                                 "{eos}",
                                 nullptr,
                                 {"{eos}"}},
                                {"phi",  // Phi-3, Phi-3.5-MoE
                                 {"<|user|>", "<|assistant|>", "<|end|>"},
                                 "",
                                 "<|system|>\n",
                                 "<|end|>\n",
                                 "<|user|>\n",
                                 "<|end|>\n",
                                 "<|assistant|>\n",
                                 "<|end|>\n",
                                 nullptr,
                                 {"<|end|>"}},
                                {"tulu",  // OLMoE
                                 {"<|user|>", "<|assistant|>"},
                                 "{bos}",
                                 "<|system|>\n",
                                 "\n",
                                 "<|user|>\n",
                                 "\n",
                                 "<|assistant|>\n",
                                 "{eos}\n",
                                 nullptr,
                                 {"{eos}", "<|user|>"}},
                                {"mistral",  // Mixtral
                                 {"[INST]", "[/INST]"},
                                 "{bos}",
                                 nullptr,
                                 nullptr,
                                 "[INST] ",
                                 " [/INST]",
                                 "",
                                 "{eos}",
                                 "",
                                 {"{eos}"}},
                                {"deepseek-v1",  // DeepSeekMoE, DeepSeek-V2
                                 {"User: ", "Assistant:"},
                                 "{bos}",
                                 "",
                                 "\n\n",
                                 "User: ",
                                 "\n\n",
                                 "Assistant: ",
                                 "{eos}",
                                 "Assistant:",
                                 {"{eos}"}},
                                {"gemma",
                                 {"<start_of_turn>", "<end_of_turn>"},
                                 "{bos}",
                                 nullptr,
                                 nullptr,
                                 "<start_of_turn>user\n",
                                 "<end_of_turn>\n",
                                 "<start_of_turn>model\n",
                                 "<end_of_turn>\n",
                                 nullptr,
                                 {"<end_of_turn>"}}};

// The system message that a ChatML template writes where a conversation has none.
std::string DefaultSystem(absl::string_view text) {
  for (const absl::string_view begin : {"<|im_start|>system\\n", "<|im_start|>system\n"}) {
    for (size_t at = text.find(begin); at != absl::string_view::npos;
         at = text.find(begin, at + 1)) {
      const absl::string_view rest = text.substr(at + begin.size());
      const absl::string_view message = rest.substr(0, rest.find("<|im_end|>"));
      // Not where the conversation's own system message is inserted: that ends the literal.
      if (!message.empty() && message.size() < rest.size() &&
          message.find_first_of("'\"{}") == absl::string_view::npos) {
        return absl::StrReplaceAll(message, {{"\\n", "\n"}});
      }
    }
  }
  return "";
}

absl::StatusOr<std::string> ReadFileText(const std::string& path) {
  MOERT_ASSIGN_OR_RETURN(const auto file, Env::Default()->Open(path, FileAccess::kBuffered));
  if (file->size() > kTokenizerLimits.max_bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes are no template", path, file->size()));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  MOERT_RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  return text;
}

// A token of tokenizer_config.json: a string, or an object with its content.
std::string TokenOf(const nlohmann::json& config, const char* key) {
  const nlohmann::json* field = FindMember(config, key);
  if (field == nullptr) return "";
  return field->is_object() ? StringMember(*field, "content") : StringMember(config, key);
}

// chat_template: the text, or a list of named texts, of which "default" is used.
std::string TemplateOf(const nlohmann::json& config) {
  const nlohmann::json* field = FindMember(config, "chat_template");
  if (field == nullptr || !field->is_array()) return StringMember(config, "chat_template");
  for (const nlohmann::json& entry : *field) {
    if (StringMember(entry, "name") == "default") return StringMember(entry, "template");
  }
  return "";
}

}  // namespace

std::vector<std::string> ChatTemplate::Names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Named(absl::string_view name, const std::string& bos,
                                                 const std::string& eos) {
  for (const Family& family : kFamilies) {
    if (name != family.name) continue;
    const auto text = [&](const char* pattern) {
      return pattern == nullptr ? std::string()
                                : absl::StrReplaceAll(pattern, {{"{bos}", bos}, {"{eos}", eos}});
    };
    ChatTemplate t;
    t.name_ = family.name;
    t.begin_ = text(family.begin);
    t.system_in_user_ = family.before_system == nullptr;
    t.before_system_ = text(family.before_system);
    t.after_system_ = text(family.after_system);
    t.before_user_ = text(family.before_user);
    t.after_user_ = text(family.after_user);
    t.before_answer_ = text(family.before_answer);
    t.after_answer_ = text(family.after_answer);
    t.cue_ = family.cue == nullptr ? t.before_answer_ : text(family.cue);
    for (const char* stop : family.stops) {
      if (!text(stop).empty()) t.stops_.push_back(text(stop));
    }
    return t;
  }
  return absl::InvalidArgumentError(fmt::format("'{}' is not a chat template; legal are {}",
                                                std::string(name), absl::StrJoin(Names(), ", ")));
}

absl::StatusOr<ChatTemplate> ChatTemplate::Recognize(absl::string_view text,
                                                     const std::string& source,
                                                     const std::string& bos,
                                                     const std::string& eos) {
  for (const Family& family : kFamilies) {
    bool all = true;
    for (const char* mark : family.marks) {
      all = all && (mark == nullptr || absl::StrContains(text, mark));
    }
    if (!all) continue;
    MOERT_ASSIGN_OR_RETURN(ChatTemplate t, Named(family.name, bos, eos));
    if (t.name_ == "chatml") t.default_system_ = DefaultSystem(text);
    if (t.name_ == "mistral") {  // spaces differ between its versions
      if (absl::StrContains(text, "' [INST] '")) t.before_user_ = " [INST] ";
      if (absl::StrContains(text, "' ' + message")) t.before_answer_.assign(1, ' ');
    }
    return t;
  }
  return absl::UnimplementedError(
      fmt::format("{}: its chat template is none of those that are known; name the one that it is "
                  "most like (--template {}), or use generate",
                  source, absl::StrJoin(Names(), "|")));
}

absl::StatusOr<ChatTemplate> ChatTemplate::LoadModel(const std::string& dir) {
  const std::string path = dir + "/tokenizer_config.json", file = dir + "/chat_template.jinja";
  nlohmann::json config = nlohmann::json::object();
  const absl::StatusOr<std::string> json = ReadFileText(path);
  if (json.ok()) {
    MOERT_ASSIGN_OR_RETURN(config, util::ParseJsonObject(*json, path, kTokenizerLimits));
  } else if (!absl::IsNotFound(json.status())) {
    return json.status();
  }
  const absl::StatusOr<std::string> jinja = ReadFileText(file);
  if (!jinja.ok() && !absl::IsNotFound(jinja.status())) return jinja.status();
  const std::string text = jinja.ok() ? *jinja : TemplateOf(config);
  if (text.empty()) {
    return absl::NotFoundError(fmt::format(
        "{}: has no chat template: the model was not made to chat. Use generate, or name "
        "a template: --template {}",
        dir, absl::StrJoin(Names(), "|")));
  }
  return Recognize(text, jinja.ok() ? file : path, TokenOf(config, "bos_token"),
                   TokenOf(config, "eos_token"));
}

absl::StatusOr<std::string> ChatTemplate::Render(absl::Span<const ChatMessage> messages) const {
  using Role = ChatMessage::Role;
  std::string out = begin_, system = default_system_;
  if (!messages.empty() && messages[0].role == Role::kSystem) {
    system = messages[0].content;
    messages.remove_prefix(1);
  }
  if (!system.empty() && !system_in_user_) {
    absl::StrAppend(&out, before_system_, system, after_system_);
    system.clear();
  }
  for (const ChatMessage& message : messages) {
    switch (message.role) {
      case Role::kSystem:
        return absl::InvalidArgumentError("a system message is legal only as the first");
      case Role::kUser:
        absl::StrAppend(&out, before_user_, system, system.empty() ? "" : "\n\n", message.content,
                        after_user_);
        system.clear();
        break;
      case Role::kAssistant:
        absl::StrAppend(&out, before_answer_, message.content, after_answer_);
        break;
    }
  }
  return out + cue_;
}

}  // namespace moert::host
