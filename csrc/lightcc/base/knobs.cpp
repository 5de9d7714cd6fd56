// What follows from the table in knob_rows.hpp: parsing, error texts, documentation.
//
// Invariant: read_knobs() checks every row, also those of the launcher and those without effect, so
// that a typing error is found on the first rank that starts. Not handled here: rules between
// variables; each row stands alone.
#include "lightcc/base/knobs.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include "lightcc/base/knob_rows.hpp"

namespace lightcc {
namespace {

using detail::Among;
using detail::kRows;
using detail::quoted;
using detail::Row;
using detail::Type;

// As the kernel has it, and less than what ranks tell one another of a setting.
constexpr std::size_t kMaxPathBytes = 4095;

using Value = std::variant<bool, std::int64_t, double, std::string, LogLevel>;

std::string decimal(double value) {
  std::array<char, 64> buffer{};
  // Not printf: its decimal point follows the locale of the program that loaded us.
  const auto [end, error] = std::to_chars(
      buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::general, 12);
  return error == std::errc() ? std::string(buffer.data(), end) : std::string("?");
}

/// With the largest suffix that divides `bytes`.
std::string byte_count(std::int64_t bytes) {
  static constexpr std::array<std::pair<char, int>, 3> kSuffixes{{{'G', 30}, {'M', 20}, {'K', 10}}};
  for (const auto& [suffix, shift] : kSuffixes) {
    const std::int64_t scale = std::int64_t{1} << shift;
    if (bytes != 0 && bytes % scale == 0) {
      return std::to_string(bytes / scale) + suffix;
    }
  }
  return std::to_string(bytes);
}

std::string range(const Row& row) {
  if (row.type == Type::kBytes) {
    return byte_count(static_cast<std::int64_t>(row.minimum)) + " to " +
           byte_count(static_cast<std::int64_t>(row.maximum));
  }
  return decimal(row.minimum) + " to " + decimal(row.maximum);
}

std::string expectation(const Row& row) {
  switch (row.type) {
    case Type::kBool:
      return "0, 1, true, false, yes, no, on or off";
    case Type::kInteger:
      return "an integer from " + range(row);
    case Type::kBytes:
      return "bytes, an integer from " + range(row) + ", K, M or G may follow";
    case Type::kSeconds:
      return "seconds, a number from " + range(row);
    case Type::kNumber:
      return "a number from " + range(row);
    case Type::kWord:
    case Type::kLevel:
      return (row.words.find(',') == std::string_view::npos ? "" : "one of ") +
             std::string(row.words);
    case Type::kWordOrPath:
      return "one of " + std::string(row.words) + ", or the path of a file (with a slash)";
    case Type::kString:
      break;
  }
  return "any text";
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) { return lower(c); });
  return result;
}

std::optional<bool> parse_bool(std::string_view text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") {
    return true;
  }
  if (word == "0" || word == "false" || word == "no" || word == "off") {
    return false;
  }
  return std::nullopt;
}

/// The whole of `text` as a number.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const first = text.data();
  const char* const last = first + text.size();
  const auto [end, error] = std::from_chars(first, last, value);
  if (error != std::errc() || end != last) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  int shift = 0;
  switch (text.empty() ? '\0' : lower(text.back())) {
    case 'k':
      shift = 10;
      break;
    case 'm':
      shift = 20;
      break;
    case 'g':
      shift = 30;
      break;
    default:
      break;
  }
  const auto value = parse_number<std::int64_t>(text.substr(0, text.size() - (shift > 0 ? 1 : 0)));
  const std::int64_t maximum = std::numeric_limits<std::int64_t>::max() >> shift;
  if (!value || *value < 0 || *value > maximum) {
    return std::nullopt;
  }
  return *value << shift;
}

/// Position of `text` among the row's words, whatever its case.
std::optional<std::size_t> parse_word(const Row& row, std::string_view text, std::string* word) {
  const std::string wanted = lower(text);
  std::string_view rest = row.words;
  for (std::size_t index = 0; !rest.empty(); ++index) {
    const std::size_t comma = rest.find(',');
    const std::string_view candidate = rest.substr(0, comma);
    if (candidate == wanted) {
      *word = wanted;
      return index;
    }
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 2);
  }
  return std::nullopt;
}

template <typename T>
std::optional<Value> in_range(const Row& row, std::optional<T> value) {
  // Written so that a NaN fails.
  if (value && static_cast<double>(*value) >= row.minimum &&
      static_cast<double>(*value) <= row.maximum) {
    return Value(*value);
  }
  return std::nullopt;
}

std::optional<Value> parse(const Row& row, const std::string& text) {
  switch (row.type) {
    case Type::kBool:
      if (const auto value = parse_bool(text)) {
        return Value(*value != row.negated);
      }
      return std::nullopt;
    case Type::kInteger:
      return in_range(row, parse_number<std::int64_t>(text));
    case Type::kBytes:
      return in_range(row, parse_bytes(text));
    case Type::kSeconds:
    case Type::kNumber:
      return in_range(row, parse_number<double>(text));
    case Type::kWord:
    case Type::kLevel: {
      std::string word;
      const auto index = parse_word(row, text, &word);
      if (!index) {
        return std::nullopt;
      }
      return row.type == Type::kLevel ? Value(static_cast<LogLevel>(*index)) : Value(word);
    }
    case Type::kWordOrPath: {
      std::string word;
      if (parse_word(row, text, &word)) {
        return Value(word);
      }
      return text.find('/') != std::string::npos && text.size() <= kMaxPathBytes
                 ? std::optional<Value>(text)
                 : std::nullopt;
    }
    case Type::kString:
      break;
  }
  return Value(text);
}

Status bad_value(const Row& row, std::string_view name, std::string_view text) {
  return {ErrorCode::kInvalidArgument,
          std::string(name) + "=" + quoted(text) + ": expected " + expectation(row)};
}

/// The value that the environment gives to `row`, if it gives one.
Result<std::optional<Value>> read_row(const Row& row, const GetEnv& get_env) {
  std::optional<Value> chosen;
  for (const std::string_view name : row.names) {
    if (name.empty()) {
      continue;
    }
    const auto text = get_env(std::string(name));
    if (!text || text->empty()) {
      continue;
    }
    auto value = parse(row, *text);
    if (!value) {
      return bad_value(row, name, *text);
    }
    if (!chosen || (row.among == Among::kLargest && *value > *chosen)) {
      chosen = std::move(value);
    }
  }
  return chosen;
}

/// Calls `visitor` with the member of `knobs` that `row` fills, if it fills one.
template <typename K, typename Visitor>
void visit_member(const Row& row, K& knobs, const Visitor& visitor) {
  std::visit(
      [&](auto member) {
        if constexpr (!std::is_same_v<decltype(member), std::monostate>) {
          visitor(knobs.*member);
        }
      },
      row.target);
}

void store(const Row& row, const Value& value, Knobs& knobs) {
  visit_member(row, knobs, [&value](auto& member) {
    using T = std::remove_reference_t<decltype(member)>;
    using Stored = std::conditional_t<std::is_same_v<T, std::optional<bool>>, bool, T>;
    if (const auto* typed = std::get_if<Stored>(&value)) {
      member = *typed;
    }
  });
}

std::string word_at(std::string_view words, std::size_t index) {
  for (; index > 0; --index) {
    words = words.substr(words.find(',') + 2);
  }
  return std::string(words.substr(0, words.find(',')));
}

/// As it stands in the environment; for a row without target, its default.
std::string value_text(const Row& row, const Knobs& knobs) {
  std::string text(row.preset);
  visit_member(row, knobs, [&](const auto& member) {
    using T = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<T, bool>) {
      text = member != row.negated ? "1" : "0";
    } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
      text = !member ? "" : *member ? "1" : "0";
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      text = row.type == Type::kBytes ? byte_count(member) : std::to_string(member);
    } else if constexpr (std::is_same_v<T, double>) {
      text = decimal(member);
    } else if constexpr (std::is_same_v<T, LogLevel>) {
      text = word_at(row.words, static_cast<std::size_t>(member));
    } else {
      text = member;
    }
  });
  return text;
}

std::string type_text(const Row& row) {
  switch (row.type) {
    case Type::kBool:
      return "bool";
    case Type::kInteger:
    case Type::kBytes:
      return "integer, " + range(row);
    case Type::kSeconds:
    case Type::kNumber:
      return "number, " + range(row);
    case Type::kWord:
    case Type::kLevel:
      return "one of " + std::string(row.words);
    case Type::kWordOrPath:
      return "one of " + std::string(row.words) + ", or a path";
    case Type::kString:
      break;
  }
  return "string";
}

std::string unit_text(const Row& row) {
  if (!row.unit.empty()) {
    return std::string(row.unit);
  }
  if (row.type == Type::kBytes) {
    return "bytes";
  }
  return row.type == Type::kSeconds ? "s" : "";
}

}  // namespace

std::string detail::quoted(std::string_view text) {
  constexpr std::size_t kMax = 80;
  std::string result = "\"";
  for (const char c : text.substr(0, kMax)) {
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  return result + (text.size() > kMax ? "...\"" : "\"");
}

bool Knobs::is_given(const std::string& name) const {
  return std::ranges::find(given, name) != given.end();
}

Result<Knobs> read_knobs(const GetEnv& get_env) {
  Knobs knobs;
  for (const Row& row : kRows) {
    LIGHTCC_ASSIGN_OR_RETURN(const auto value, read_row(row, get_env));
    if (value) {
      store(row, *value, knobs);
      knobs.given.emplace_back(row.names[0]);
    }
  }
  return knobs;
}

GetEnv process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    // Unsafe only beside setenv(), which Python calls with the interpreter lock held, as is this.
    const char* const text = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  };
}

std::vector<std::string> shared_knobs(const Knobs& knobs) {
  std::vector<std::string> settings;
  for (const Row& row : kRows) {
    if (row.shared) {
      settings.push_back(std::string(row.names[0]) + "=" + value_text(row, knobs));
    }
  }
  return settings;
}

std::vector<std::string> settings_beside_defaults(const Knobs& knobs) {
  std::vector<std::string> settings;
  for (const Row& row : kRows) {
    const std::string value = value_text(row, knobs);
    if (knobs.is_given(std::string(row.names[0])) && value != value_text(row, Knobs())) {
      settings.push_back(std::string(row.names[0]) + "=" + value);
    }
  }
  return settings;
}

std::vector<KnobRow> knob_table() {
  std::vector<KnobRow> table;
  table.reserve(kRows.size());
  for (const Row& row : kRows) {
    table.push_back({.name = std::string(row.names[0]),
                     .aliases = std::string(row.names[1]),
                     .type = type_text(row),
                     .default_value = value_text(row, Knobs()),
                     .unit = unit_text(row),
                     .meaning = std::string(row.meaning),
                     .used_by = std::string(row.used_by)});
  }
  return table;
}

}  // namespace lightcc
