#include "base/json.h"

#include <random>

#include "base/json_writer.h"
#include "base/printable.h"
#include "support/catch.h"
#include "support/mutate.h"

namespace moert {
namespace {

absl::StatusOr<JsonDocument> Parse(std::string text, const JsonLimits& limits = {}) {
  return JsonDocument::Parse(std::move(text), "f", limits);
}

std::string ErrorOf(std::string text, const JsonLimits& limits = {}) {
  const auto document = Parse(std::move(text), limits);
  return document.ok() ? "accepted" : std::string(document.status().message());
}

TEST_CASE("values are what was written") {
  const auto document = Parse(
      " {\"a\" : [1, -2,3.5,1e3 ] ,\n\"b\":{\"c\":null,\"d\":true},"
      "\"e\":\"x\\u00e9\\ud83d\\ude00\\n\\\"\\/\",\"f\":{}, \"g\":[ ]}\n");
  REQUIRE_OK(document.status());
  const JsonValue root = document->root();
  CHECK(root.size() == 5);
  const auto a = root.Find("a");
  REQUIRE(a);
  CHECK(a->size() == 4);
  std::vector<double> numbers;
  std::vector<int64_t> integers;
  for (const JsonValue v : a->elements()) {
    numbers.push_back(v.AsDouble().value());
    integers.push_back(v.AsInt().value_or(-99));
  }
  CHECK(numbers == std::vector<double>{1, -2, 3.5, 1000});
  CHECK(integers == std::vector<int64_t>{1, -2, -99, -99});
  CHECK(root.Find("b")->Find("c")->is_null());
  CHECK(root.Find("b")->Find("d")->AsBool());
  CHECK(!root.Find("b")->Find("x"));
  CHECK(root.Find("e")->AsString() == "x\xC3\xA9\xF0\x9F\x98\x80\n\"/");
  CHECK(root.Find("e")->Is("x\xC3\xA9\xF0\x9F\x98\x80\n\"/"));
  CHECK(root.Find("f")->size() == 0);
  CHECK(root.Find("g")->size() == 0);
  CHECK(!root.Find("a")->Find("b"));
  CHECK(!root.Find("e")->AsInt());
  CHECK(!root.Find("a")->AsString());
  CHECK(root.Find("b")->text() == "{\"c\":null,\"d\":true}");
}

TEST_CASE("numbers at the ends of their ranges") {
  const auto value = [](const std::string& number) {
    auto document = Parse("{\"n\":" + number + "}");
    REQUIRE_OK(document.status());
    const auto n = document->root().Find("n");
    return std::pair(n->AsInt(), n->AsDouble());
  };
  CHECK(value("9223372036854775807").first == INT64_MAX);
  CHECK(value("-9223372036854775808").first == INT64_MIN);
  CHECK(!value("9223372036854775808").first);
  CHECK(value("9223372036854775808").second == 9223372036854775808.0);
  CHECK(value("-0").first == 0);
  CHECK(!value("1.0").first);
  CHECK(!value("1e999").second);
  CHECK(value("1e-999").second == 0.0);
  CHECK(value("0.5e-400").second == 0.0);
}

TEST_CASE("what is not JSON is refused with the place") {
  for (const char* bad : {"",
                          " ",
                          "{",
                          "{\"a\":1",
                          "{\"a\"}",
                          "{\"a\":}",
                          "{\"a\":1,}",
                          "{,}",
                          "{\"a\":[1,]}",
                          "{\"a\":[1 2]}",
                          "{\"a\":01}",
                          "{\"a\":+1}",
                          "{\"a\":.5}",
                          "{\"a\":1.}",
                          "{\"a\":1e}",
                          "{\"a\":-}",
                          "{\"a\":tru}",
                          "{\"a\":nul",
                          "{\"a\":NaN}",
                          "{'a':1}",
                          "{\"a\":\"\\x\"}",
                          "{\"a\":\"\\u12g4\"}",
                          "{\"a\":\"\\ud800\"}",
                          "{\"a\":\"\\udc00\"}",
                          "{\"a\":\"\\ud800\\u0041\"}",
                          "{\"a\":\"\x01\"}",
                          "{\"a\":\"\xff\"}",
                          "{\"a\":\"\xc0\xaf\"}",
                          "{\"a\":\"\xed\xa0\x80\"}",
                          "{\"a\":\"\xf5\x80\x80\x80\"}",
                          "{\"a\":\"\xe2\x82\"}",
                          "{\"a\":\"x",
                          "{\"a\":1}}",
                          "{\"a\":1} x",
                          "{\"a\":1]",
                          "{\"a\":[1}",
                          "{a:1}",
                          "{1:1}",
                          "{\"a\":1 \"b\":2}",
                          "{\"a\":[,1]}"}) {
    INFO(bad);
    CHECK_THAT(ErrorOf(bad), Catch::StartsWith("f: invalid JSON at byte "));
  }
  CHECK(ErrorOf("[]") == "f: the top level is not an object");
  CHECK(ErrorOf("1") == "f: the top level is not an object");
  CHECK(ErrorOf(std::string("{\"a\":1}\0", 8)) != "accepted");
  CHECK(ErrorOf(std::string("{\"a\":\"\0\"}", 9)) != "accepted");
  CHECK(ErrorOf("\xEF\xBB\xBF{}") == "accepted");
}

TEST_CASE("what Python writes for numbers that are not finite, where that is asked for") {
  constexpr char kText[] = R"({"a":[0.0, Infinity,-Infinity , NaN],"b":1})";
  CHECK_THAT(ErrorOf(kText), Catch::StartsWith("f: invalid JSON at byte "));
  const JsonLimits python = {.not_finite = true};
  const auto document = JsonDocument::Parse(kText, "f", python);
  REQUIRE_OK(document.status());
  const auto list = document->root().Find("a");
  REQUIRE(list->size() == 4);
  for (const JsonValue value : list->elements()) {
    CHECK(value.AsDouble().has_value() == (value.text() == "0.0"));
    CHECK_FALSE(value.AsInt().has_value());
    CHECK_FALSE((value.is_null() || value.is_bool() || value.is_string() || value.is_object()));
  }
  CHECK(document->root().Find("b")->AsInt() == 1);
  for (const char* bad :
       {"{\"a\":Infinit}", "{\"a\":-Inf}", "{\"a\":NaN1}", "{\"a\":--Infinity}"}) {
    INFO(bad);
    CHECK_THAT(ErrorOf(bad, python), Catch::StartsWith("f: invalid JSON at byte "));
  }
}

TEST_CASE("limits stop the parser") {
  CHECK(ErrorOf("{\"a\":[[[]]]}", {.max_depth = 3}) == "f: nested deeper than 3");
  CHECK(ErrorOf("{\"a\":[[]]}", {.max_depth = 3}) == "accepted");
  CHECK(ErrorOf("{\"a\":[1,2,3]}", {.max_values = 4}) == "f: more than 4 values");
  CHECK(ErrorOf("{\"a\":[1,2,3]}", {.max_values = 5}) == "accepted");
  CHECK_THAT(ErrorOf("{\"a\":1}", {.max_bytes = 6}),
             Catch::Contains("has 7 bytes, legal is at most 6"));
  CHECK(ErrorOf("{\"a\":" + std::string(5'000'000, '[')) == "f: nested deeper than 32");
}

TEST_CASE("a key comes once, however it is written") {
  CHECK_THAT(ErrorOf("{\"a\":1,\"b\":2,\"a\":3}"), Catch::Contains("duplicate key \"a\""));
  CHECK_THAT(ErrorOf("{\"a\":1,\"\\u0061\":3}"), Catch::Contains("duplicate key"));
  CHECK_THAT(ErrorOf("{\"x\":{\"a\":1,\"a\":3}}"), Catch::Contains("duplicate key"));
  CHECK(ErrorOf("{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}") == "accepted");
  CHECK_THAT(ErrorOf("{\"\x1b[31m\":1}"), Catch::Contains("control character"));
  CHECK_THAT(ErrorOf("{\"\\u001b[31m\":1,\"\\u001b[31m\":1}"),
             !Catch::Contains("\x1b") && Catch::Contains("duplicate key"));
}

TEST_CASE("the writer's text reads back") {
  JsonWriter out;
  out.BeginObject().Field("a", 1).Field("b", -2.5).Field("c", true).Field("d", "x\"\\\x07\xC3\xA9");
  out.Key("e").Values(std::vector<int64_t>{1, 2}).Key("f").BeginObject().EndObject();
  out.Field("g", 3.0).Field("h", 1e300 * 1e300).Field("i", "\xF0\x9F\x98\x80\xff").EndObject();
  const std::string text = out.Take();
  CHECK(text ==
        "{\"a\":1,\"b\":-2.5,\"c\":true,\"d\":\"x\\\"\\\\\\u0007\\u00e9\",\"e\":[1,2],\"f\":{},"
        "\"g\":3.0,\"h\":null,\"i\":\"\\ud83d\\ude00\\ufffd\"}");
  const auto document = Parse(text);
  REQUIRE_OK(document.status());
  CHECK(JsonWriter().Copy(document->root()).Take() == text);
  const auto mixed = Parse("{\"b\":[1,{\"z\":1,\"a\":2}],\n \"a\":\"\\u0041\"}");
  REQUIRE_OK(mixed.status());
  CHECK(JsonWriter().Copy(mixed->root()).Take() == "{\"a\":\"A\",\"b\":[1,{\"a\":2,\"z\":1}]}");
}

TEST_CASE("damaged text is refused or read within itself") {
  const std::string text =
      "{\"name\":\"a \\u00e9 b\",\"list\":[1,2.5,-3e7,null,true,{\"k\":\"v\"}],\"o\":{\"p\":{}}}";
  test::Mutator mutator(11);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto document = Parse(mutator.Damage(text));
    if (!document.ok()) continue;
    ++accepted;
    const std::string copy = JsonWriter().Copy(document->root()).Take();
    const auto again = Parse(copy);
    REQUIRE_OK(again.status());
    CHECK(JsonWriter().Copy(again->root()).Take() == copy);
  }
  CHECK(accepted > 100);
}

TEST_CASE("what a file says is printed without control characters") {
  CHECK(Printable("plain") == "plain");
  CHECK(Printable("\x1b[31mred\n\xC3\xA9") == "\\x1b[31mred\\x0a\\xc3\\xa9");
  CHECK(Printable("0123456789", 4) == "0123...");
}

}  // namespace
}  // namespace moert
