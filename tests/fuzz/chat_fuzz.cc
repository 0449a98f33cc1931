// The chat template of a model's folder: tokenizer_config.json, then, behind a zero byte,
// chat_template.jinja, then, behind another, what a user says.
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "fuzz/fuzz.h"
#include "host/chat_template.h"

using namespace moert;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder folder;
  const absl::string_view all(reinterpret_cast<const char*>(data), size);
  const std::vector<absl::string_view> parts = absl::StrSplit(all, absl::MaxSplits('\0', 2));
  folder.Write("tokenizer_config.json", parts[0]);
  folder.Remove("chat_template.jinja");
  if (parts.size() > 1) folder.Write("chat_template.jinja", parts[1]);
  const auto chat = host::ChatTemplate::LoadModel(folder.path());
  if (!chat.ok()) return 0;
  for (const std::string& stop : chat->stops()) FUZZ_REQUIRE(!stop.empty());

  using Role = host::ChatMessage::Role;
  const std::string said(parts.size() > 2 ? parts[2] : "Hi");
  std::vector<host::ChatMessage> talk = {{Role::kUser, said}, {Role::kAssistant, "-"}};
  const auto text = chat->Render(talk);
  FUZZ_REQUIRE(text.ok() && absl::StrContains(*text, said));
  FUZZ_REQUIRE(text->size() <= 16 * (size + 64));  // markers may hold bos and eos a few times
  talk.insert(talk.begin(), {Role::kSystem, said});
  const auto led = chat->Render(talk);
  FUZZ_REQUIRE(led.ok() && absl::StrContains(*led, said));
  talk.push_back({Role::kSystem, said});
  FUZZ_REQUIRE(!chat->Render(talk).ok());
  return 0;
}
