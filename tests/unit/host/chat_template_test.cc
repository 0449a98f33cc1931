#include "host/chat_template.h"

#include "host/stop_text.h"
#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert::host {
namespace {

using Role = ChatMessage::Role;

std::vector<ChatMessage> Talk() {
  return {{Role::kUser, "Hi"}, {Role::kAssistant, "Hello."}, {Role::kUser, "Bye"}};
}
std::string Render(const std::string& name, std::vector<ChatMessage> messages) {
  const auto t = ChatTemplate::Named(name, "<s>", "</s>");
  REQUIRE(t.ok());
  const auto text = t->Render(messages);
  REQUIRE(text.ok());
  return *text;
}

TEST_CASE("families write what their models were trained on") {
  CHECK(Render("chatml", Talk()) ==
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
  CHECK(Render("mistral", Talk()) == "<s>[INST] Hi [/INST]Hello.</s>[INST] Bye [/INST]");
  CHECK(Render("llama3", {{Role::kUser, "Hi"}}) ==
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  CHECK(Render("phi", Talk()) ==
        "<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n");
  CHECK(Render("tulu", Talk()) ==
        "<s><|user|>\nHi\n<|assistant|>\nHello.</s>\n<|user|>\nBye\n<|assistant|>\n");
  CHECK(Render("deepseek-v1", Talk()) ==
        "<s>User: Hi\n\nAssistant: Hello.</s>User: Bye\n\nAssistant:");
  CHECK(Render("harmony", {{Role::kUser, "Hi"}}) ==
        "<|start|>user<|message|>Hi<|end|><|start|>assistant");
}

TEST_CASE("a system message comes first, or in front of the first user message") {
  std::vector<ChatMessage> messages = Talk();
  messages.insert(messages.begin(), {Role::kSystem, "Be brief."});
  CHECK_THAT(Render("chatml", messages),
             Catch::StartsWith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi"));
  CHECK_THAT(Render("mistral", messages), Catch::StartsWith("<s>[INST] Be brief.\n\nHi [/INST]"));
  messages.push_back({Role::kSystem, "again"});
  CHECK_FALSE(ChatTemplate::Named("chatml")->Render(messages).ok());
}

TEST_CASE("a checkpoint's template is recognized by what it writes, or refused") {
  const auto name = [](absl::string_view text) {
    const auto t = ChatTemplate::Recognize(text, "f", "<s>", "</s>");
    return t.ok() ? t->name() : std::string(t.status().message());
  };
  const std::string chatml =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
      "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
      "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}";
  CHECK(name(chatml) == "chatml");
  CHECK_THAT(*ChatTemplate::Recognize(chatml, "f", "", "")->Render(Talk()),
             Catch::StartsWith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"));
  // One that writes only the conversation's own system message.
  const std::string own =
      "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + "
      "'<|im_end|>\\n' }}{%- endif %}";
  CHECK_THAT(*ChatTemplate::Recognize(own, "f", "", "")->Render(Talk()),
             Catch::StartsWith("<|im_start|>user\nHi"));
  CHECK(name("{{ bos_token }}{{ ' [INST] ' + m + ' [/INST]' }}") == "mistral");
  CHECK(name("{{'<｜User｜>' + m}}{{'<｜Assistant｜>'}}") == "deepseek");
  CHECK_THAT(name("{{ '### Human: ' }}"),
             Catch::Contains("none of those that are known") && Catch::Contains("chatml|"));
  CHECK_FALSE(ChatTemplate::Named("alpaca").ok());
}

TEST_CASE("templates are found in either file; a model without one says what to do") {
  const test::TempDir dir;
  CHECK_THAT(std::string(ChatTemplate::LoadModel(dir.path()).status().message()),
             Catch::Contains("Use generate") && Catch::Contains("--template"));
  test::WriteFile(dir / "tokenizer_config.json",
                  R"({"bos_token": {"content": "<b>"}, "eos_token": "</b>", "chat_template": [
                      {"name": "tool_use", "template": "?"},
                      {"name": "default", "template": "'[INST] ' ' [/INST]'"}]})");
  const auto listed = ChatTemplate::LoadModel(dir.path());
  REQUIRE(listed.ok());
  CHECK(*listed->Render(Talk()) == "<b>[INST] Hi [/INST]Hello.</b>[INST] Bye [/INST]");
  CHECK(listed->stops() == std::vector<std::string>{"</b>"});
  test::WriteFile(dir / "chat_template.jinja", "<|im_start|> <|im_end|>");
  CHECK(ChatTemplate::LoadModel(dir.path())->name() == "chatml");  // the newer place wins
}

TEST_CASE("stop strings end a text wherever the pieces are cut") {
  const std::string text = "one STOPtwo";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    StopText stop({"STOP", ""});
    std::string shown = stop.Push(text.substr(0, cut));
    CHECK(shown.find('S') == std::string::npos);
    shown += stop.Push(text.substr(cut));
    CHECK(stop.stopped());
    CHECK(shown + stop.Finish() == "one ");
  }
  StopText earliest({"b", "ab"});
  CHECK(earliest.Push("xab") == "x");
  StopText none({"STOP"});
  CHECK(none.Push("the ST") == "the ");
  CHECK(none.Push("ART") == "START");
  CHECK(none.Push("S").empty());
  CHECK(none.Finish() == "S");
  CHECK_FALSE(none.stopped());
}

}  // namespace
}  // namespace moert::host
