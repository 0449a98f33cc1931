// From a conversation to the prompt that a model was trained on.
//
// Checkpoints carry Jinja programs for this. Here a template is recognized by the marks it writes
// and rendered by a table, so that no program of a stranger runs; one that is not recognized is
// refused. No Jinja library for C++ is packaged by Debian.
#ifndef MOERT_EXAMPLES_HOST_CHAT_TEMPLATE_H_
#define MOERT_EXAMPLES_HOST_CHAT_TEMPLATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moert::host {

struct ChatMessage {
  enum class Role { kSystem, kUser, kAssistant };
  Role role = Role::kUser;
  std::string content;
};

/// The texts around the messages. Special tokens are written as text, which Tokenizer::Encode takes
/// for them.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja, or chat_template of tokenizer_config.json, of a model's folder.
  /// NotFound if there is neither, Unimplemented naming what can be given instead if it is none of
  /// Names().
  static absl::StatusOr<ChatTemplate> LoadModel(const std::string& dir);
  /// The same of a template's text. `source` is for messages; `bos` and `eos` are what the template
  /// calls bos_token and eos_token.
  static absl::StatusOr<ChatTemplate> Recognize(absl::string_view text, const std::string& source,
                                                const std::string& bos, const std::string& eos);
  /// By name, for models that bring none. InvalidArgument lists the names.
  static absl::StatusOr<ChatTemplate> Named(absl::string_view name, const std::string& bos = "",
                                            const std::string& eos = "");
  static std::vector<std::string> Names();

  /// The conversation, ending where the assistant is to speak. A system message only as the first;
  /// InvalidArgument for another, and where the template has no place for one.
  absl::StatusOr<std::string> Render(absl::Span<const ChatMessage> messages) const;
  const std::string& name() const { return name_; }
  /// Strings that end an answer, in case the checkpoint's stop tokens do not.
  const std::vector<std::string>& stops() const { return stops_; }

 private:
  ChatTemplate() = default;

  std::string name_;
  std::string begin_;
  std::string default_system_;  // the message where none is given; empty: none
  std::string before_system_, after_system_;
  bool system_in_user_ = false;  // the system message goes in front of the first user message
  std::string before_user_, after_user_, before_answer_, after_answer_;
  std::string cue_;  // what makes the assistant speak
  std::vector<std::string> stops_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CHAT_TEMPLATE_H_
