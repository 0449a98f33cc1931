// Renders a conversation in the prompt format that a model was trained on.
//
// Checkpoints ship a Jinja template for this. Rendering it would mean running untrusted code, so a
// template is only recognized by its marker strings and rendered from a table; one that is not
// recognized is refused. Debian packages no Jinja library for C++.
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

/// The strings that a chat format puts around the messages. Special tokens are written as text;
/// Tokenizer::Encode recognizes them.
class ChatTemplate {
 public:
  /// Reads chat_template.jinja, or the field chat_template of tokenizer_config.json, from a model's
  /// folder. NotFound if there is neither; Unimplemented, naming the alternatives, if the template
  /// is none of Names().
  static absl::StatusOr<ChatTemplate> LoadModel(const std::string& dir);
  /// Recognizes a template from its text. `source` is for messages; `bos` and `eos` are the values
  /// of the template's bos_token and eos_token.
  static absl::StatusOr<ChatTemplate> Recognize(absl::string_view text, const std::string& source,
                                                const std::string& bos, const std::string& eos);
  /// Returns the template called `name`, for models that bring none. InvalidArgument lists the
  /// names.
  static absl::StatusOr<ChatTemplate> Named(absl::string_view name, const std::string& bos = "",
                                            const std::string& eos = "");
  static std::vector<std::string> Names();

  /// Renders the conversation up to where the assistant's next answer begins. Only the first
  /// message may be a system message; InvalidArgument for a later one, and if the template has no
  /// place for it.
  absl::StatusOr<std::string> Render(absl::Span<const ChatMessage> messages) const;
  const std::string& name() const { return name_; }
  /// Strings that end an answer, in case the checkpoint's stop tokens do not.
  const std::vector<std::string>& stops() const { return stops_; }

 private:
  ChatTemplate() = default;

  std::string name_;
  std::string begin_;
  std::string default_system_;  // the system message if none is given; empty: none
  std::string before_system_, after_system_;
  bool system_in_user_ = false;  // the system message goes in front of the first user message
  std::string before_user_, after_user_, before_answer_, after_answer_;
  std::string cue_;  // the text that starts the assistant's answer
  std::vector<std::string> stops_;
};

}  // namespace moert::host

#endif  // MOERT_EXAMPLES_HOST_CHAT_TEMPLATE_H_
