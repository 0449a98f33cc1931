#include "util/json.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <utility>
#include <vector>

#include "util/printable.h"

namespace moert::util {
namespace {

using nlohmann::json;

// Builds the document from parser events, so that a limit or a duplicate key stops the parser at
// once. The parser itself keeps its own stack and does not recurse.
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return Put(json(nullptr)); }
  bool boolean(bool v) override { return Put(json(v)); }
  bool number_integer(number_integer_t v) override { return Put(json(v)); }
  bool number_unsigned(number_unsigned_t v) override { return Put(json(v)); }
  bool number_float(number_float_t v, const string_t&) override { return Put(json(v)); }
  bool string(string_t& v) override { return Put(json(std::move(v))); }
  bool binary(binary_t&) override { return Fail("binary value"); }

  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    auto [it, inserted] = stack_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!inserted) return Fail(fmt::format("duplicate key \"{}\"", Printable(name)));
    slot_ = &it->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception& e) override {
    return Fail(fmt::format("invalid JSON at byte {}: {}", position, Printable(e.what(), 200)));
  }

  const std::string& error() const { return error_; }
  json Take() { return std::move(root_); }

 private:
  bool Fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
    return false;
  }

  // Puts a value at the last key, or appends it to the open array.
  json* Place(json v) {
    if (++values_ > limits_.max_values) {
      Fail(fmt::format("more than {} values", limits_.max_values));
      return nullptr;
    }
    if (stack_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(v));
      return &stack_.back()->back();
    }
    *slot_ = std::move(v);
    return slot_;
  }
  bool Put(json v) {
    if (stack_.empty()) return Fail("the top level is not an object");
    return Place(std::move(v)) != nullptr;
  }
  bool Open(json v) {
    if (stack_.empty() && !v.is_object()) return Fail("the top level is not an object");
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      return Fail(fmt::format("nested deeper than {}", limits_.max_depth));
    }
    json* placed = Place(std::move(v));
    if (placed == nullptr) return false;
    // Growing an array moves its elements, but never while one of them is open.
    stack_.push_back(placed);
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  json root_;
  std::vector<json*> stack_;
  json* slot_ = nullptr;
  int64_t values_ = 0;
  std::string error_;
};

// An upper bound of the number of values in the text. Checked before anything is built, because the
// document takes up to 100 times the text's size.
int64_t MostValues(absl::string_view text) {
  int64_t most = 1;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      most += c == ',' || c == '[' || c == '{';
    }
  }
  return most;
}

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text, const std::string& source,
                                     const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return absl::InvalidArgumentError(fmt::format("{}: {} bytes of JSON, the limit is {}", source,
                                                  text.size(), limits.max_bytes));
  }
  if (MostValues(text) > limits.max_values) {
    return absl::InvalidArgumentError(
        fmt::format("{}: more than {} values", source, limits.max_values));
  }
  try {
    Builder builder(limits);
    if (!json::sax_parse(text.begin(), text.end(), &builder)) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", source, builder.error()));
    }
    return builder.Take();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(fmt::format("{}: out of memory while parsing", source));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", source, Printable(e.what(), 200)));
  }
}

}  // namespace moert::util
