#include "lightcc/engine/timeline/timeline_text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace lightcc {
namespace {

// Bytes of the UTF-8 sequence that `text` starts with; 0: it is none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) {
      return 0;
    }
  }
  // Too long a form, a surrogate, or beyond Unicode.
  const bool is_wrong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0) ||
                        (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90);
  return is_wrong ? 0 : length;
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const char c = text.front();
    if (length == 0) {
      out += '?';
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < ' ') {
      std::array<char, 8> code{};
      (void)std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      out += code.data();
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out + '"';
}

std::string micros(std::int64_t ns) {
  std::array<char, 32> text{};
  const char* sign = ns < 0 ? "-" : "";
  const std::int64_t size = ns < 0 ? -ns : ns;
  const int length = std::snprintf(text.data(),
                                   text.size(),
                                   "%s%lld.%03d",
                                   sign,
                                   static_cast<long long>(size / 1000),
                                   static_cast<int>(size % 1000));
  return {text.data(), static_cast<std::size_t>(std::max(length, 0))};
}

void add_metadata(std::string_view what,
                  std::uint32_t pid,
                  std::string_view arguments,
                  std::string& out) {
  out += ",\n{\"name\": \"";
  out += what;
  out += R"(", "ph": "M", "pid": )" + std::to_string(pid) + ", \"args\": {";
  out += arguments;
  out += "}}";
}

void add_names(std::uint32_t pid,
               std::string_view process,
               std::string_view thread,
               std::string& out) {
  add_metadata("process_name", pid, "\"name\": " + json_string(process), out);
  out += ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": " + std::to_string(pid) +
         ", \"tid\": " + std::to_string(pid) + R"(, "args": {"name": ")";
  out += thread;
  out += "\"}}";
}

void add_mark(std::string_view name,
              std::int64_t at_ns,
              std::string_view arguments,
              std::string& out) {
  out += ",\n{\"ph\": \"i\", \"name\": \"";
  out += name;
  out += R"(", "ts": )" + micros(at_ns) + R"(, "pid": 0, "s": "p")";
  if (!arguments.empty()) {
    out += ", \"args\": {";
    out += arguments;
    out += '}';
  }
  out += '}';
}

}  // namespace lightcc
