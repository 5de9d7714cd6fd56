// The form of a file of counters: what is where, and the file's own description of it.
//
//   head     who wrote it, and how large everything is
//   tables   name, kind, unit and meaning of every field: of an engine, a session, a path
//   blocks   one for each engine: SeqWords around the engine's fields, its sessions and their paths
//
// A reader needs no other knowledge of who wrote the file. The byte table is in docs/harp/stat.md.
// Sans-I/O: this turns values into bytes and words; StatFile puts them where others see them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace harp {

/// What a reader may do with a field.
enum class StatKind : std::uint8_t {
  kCounter = 1,  ///< Only grows: differences and rates.
  kGauge = 2,    ///< How things stand.
  kLabel = 3,    ///< Tells records of one table apart.
  kInfo = 4,     ///< Words about the record.
};

struct StatField {
  // Room for the texts in the table of a file.
  static constexpr std::size_t kNameBytes = 32;
  static constexpr std::size_t kUnitBytes = 16;
  static constexpr std::size_t kHelpBytes = 72;

  StatKind kind = StatKind::kCounter;
  std::uint8_t text_words = 0;  ///< 0: one word, a number. Else so many words of text.
  std::string_view name;
  std::string_view unit;  ///< "": a number of what the name says.
  std::string_view help;

  constexpr std::size_t words() const { return text_words == 0 ? 1 : text_words; }
  /// Longer texts are cut.
  constexpr bool fits() const {
    return name.size() <= kNameBytes && unit.size() <= kUnitBytes && help.size() <= kHelpBytes;
  }
};

using StatTable = std::span<const StatField>;

/// Words of one record of `table`.
constexpr std::size_t stat_words(StatTable table) {
  std::size_t words = 0;
  for (const StatField& field : table) {
    words += field.words();
  }
  return words;
}

struct StatLayout {
  static constexpr std::size_t kHeadBytes = 128;
  static constexpr std::size_t kFieldBytes = 128;
  static constexpr std::size_t kPageBytes = 4096;  ///< Blocks begin at multiples of it.
  /// In front of an engine's fields: the time, sessions shown, sessions there are.
  static constexpr std::size_t kEngineHeadWords = 3;
  /// In front of a session's fields: paths shown, paths there are.
  static constexpr std::size_t kSessionHeadWords = 2;

  StatTable engine = {};
  StatTable session = {};
  StatTable path = {};
  std::size_t max_sessions = 0;  ///< That a block has room for.
  std::size_t max_paths = 0;     ///< That a session has room for.
  std::size_t blocks = 0;

  std::size_t session_words() const {
    return kSessionHeadWords + stat_words(session) + max_paths * stat_words(path);
  }
  /// Without the count of SeqWords.
  std::size_t value_words() const {
    return kEngineHeadWords + stat_words(engine) + max_sessions * session_words();
  }
  std::size_t block_bytes() const;
  std::size_t first_block() const;
  std::size_t file_bytes() const { return first_block() + blocks * block_bytes(); }
};

inline constexpr std::uint32_t kStatVersion = 1;

/// Head and tables: the bytes in front of the first block.
std::vector<std::byte> encode_stat_head(const StatLayout& layout,
                                        std::uint32_t pid,
                                        std::uint64_t created_unix_ns);

/// Puts fields side by side. Nothing is written beyond the end.
class StatWriter {
 public:
  explicit StatWriter(std::span<std::uint64_t> out) : out_(out) {}
  void number(std::uint64_t value) {
    if (written_ < out_.size()) {
      out_[written_++] = value;
    }
  }
  /// Cut where it is longer than so many words, padded with zeroes where it is shorter.
  void text(std::string_view text, std::size_t words);
  /// Leaves words as they are, up to the one at `index`.
  void skip_to(std::size_t index) { written_ = index; }
  std::size_t written() const { return written_; }

 private:
  std::span<std::uint64_t> out_;
  std::size_t written_ = 0;
};

}  // namespace harp
