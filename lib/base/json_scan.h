// Scanning of JSON text, shared by the checker of documents and the values of checked documents.
#ifndef MOERT_LIB_BASE_JSON_SCAN_H_
#define MOERT_LIB_BASE_JSON_SCAN_H_

#include <cstdint>

namespace moert::json_scan {

inline bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Length of the UTF-8 sequence at p; 0: illegal (overlong, a surrogate, above U+10FFFF, cut off).
int Utf8Length(const char* p, const char* end);
/// The code point of a legal sequence.
uint32_t DecodeUtf8(const char* p, int length);

/// The functions below take pointers into checked text, which ends with a NUL.
inline const char* SkipSpace(const char* p) {
  while (IsSpace(*p)) ++p;
  return p;
}
/// `p` is at the opening quote; returns the place after the closing one.
inline const char* SkipString(const char* p) {
  for (++p; *p != '"'; ++p) p += *p == '\\';
  return p + 1;
}
/// The place after the value that begins at `p`.
const char* SkipValue(const char* p);

/// The code point at `*p` inside a string, with escapes resolved; moves `*p` past it.
uint32_t NextCodePoint(const char** p);
/// Orders the strings at two opening quotes by their code points: negative, 0 or positive.
int CompareStrings(const char* a, const char* b);

/// Checks the characters of the value that begins at `p`, and returns its end. On failure returns
/// null and sets *error.
const char* CheckString(const char* p, const char* end, const char** error);
const char* CheckNumber(const char* p, const char* end, const char** error);

}  // namespace moert::json_scan

#endif  // MOERT_LIB_BASE_JSON_SCAN_H_
