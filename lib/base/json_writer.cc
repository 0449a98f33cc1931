#include "base/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "base/json_scan.h"

namespace moert {

void JsonWriter::BeforeValue() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonWriter& JsonWriter::Open(char bracket) {
  BeforeValue();
  out_ += bracket;
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::Close(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(absl::string_view key) {
  String(key);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(absl::string_view value) {
  BeforeValue();
  Quote(value);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  BeforeValue();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonWriter& JsonWriter::Double(double value) {
  BeforeValue();
  if (!std::isfinite(value)) {
    out_ += "null";
    return *this;
  }
  const size_t start = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  if (out_.find_first_of(".e", start) == out_.npos) out_ += ".0";
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  BeforeValue();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Copy(JsonValue value) {
  if (value.is_object()) {
    std::vector<JsonMember> members;
    for (const JsonMember& m : value.members()) members.push_back(m);
    std::sort(members.begin(), members.end(), [](const JsonMember& a, const JsonMember& b) {
      return json_scan::CompareStrings(a.key.text().data(), b.key.text().data()) < 0;
    });
    BeginObject();
    for (const JsonMember& m : members) {
      Key(*m.key.AsString());
      Copy(m.value);
    }
    return EndObject();
  }
  if (value.is_array()) {
    BeginArray();
    for (const JsonValue element : value.elements()) Copy(element);
    return EndArray();
  }
  if (value.is_string()) return String(*value.AsString());
  BeforeValue();
  out_.append(value.text().data(), value.text().size());
  return *this;
}

void JsonWriter::Quote(absl::string_view text) {
  const auto escape = [this](uint32_t unit) {
    fmt::format_to(std::back_inserter(out_), "\\u{:04x}", unit);
  };
  out_ += '"';
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const int length = json_scan::Utf8Length(p, end);
    if (length == 0) {
      escape(0xfffd);
      ++p;
      continue;
    }
    const char c = *p;
    if (length > 1 || c < 0x20 || c == 0x7f || c == '"' || c == '\\') {
      const absl::string_view plain("\"\\\b\f\n\r\t"), letter("\"\\bfnrt");
      const size_t known = length == 1 ? plain.find(c) : plain.npos;
      if (known != plain.npos) {
        out_ += '\\';
        out_ += letter[known];
        ++p;
        continue;
      }
      const uint32_t point = json_scan::DecodeUtf8(p, length);
      p += length;
      if (point < 0x10000) {
        escape(point);
      } else {
        escape(0xd800 + ((point - 0x10000) >> 10));
        escape(0xdc00 + ((point - 0x10000) & 0x3ff));
      }
      continue;
    }
    out_ += c;
    ++p;
  }
  out_ += '"';
}

}  // namespace moert
