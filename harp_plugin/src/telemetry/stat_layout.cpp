#include "telemetry/stat_layout.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "sync/seq_words.hpp"

namespace harp {
namespace {

constexpr std::string_view kMagic = "HARPSTAT";
constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
// A field is kind, type and words, then these three texts, all with zeroes behind them.
constexpr std::size_t kFieldHeadBytes = 8;
static_assert(kFieldHeadBytes + StatField::kNameBytes + StatField::kUnitBytes +
                  StatField::kHelpBytes ==
              StatLayout::kFieldBytes);

std::size_t round_to_pages(std::size_t bytes) {
  return (bytes + StatLayout::kPageBytes - 1) / StatLayout::kPageBytes * StatLayout::kPageBytes;
}

void write_text(ByteWriter& out, std::string_view text, std::size_t bytes) {
  const std::size_t taken = std::min(text.size(), bytes);
  out.raw(std::as_bytes(std::span(text.substr(0, taken))));
  for (std::size_t i = taken; i < bytes; ++i) {
    out.number(std::uint8_t{0});
  }
}

void write_table(ByteWriter& out, StatTable table) {
  for (const StatField& field : table) {
    out.number(static_cast<std::uint8_t>(field.kind));
    out.number(static_cast<std::uint8_t>(field.text_words != 0 ? 2 : 1));
    out.number(static_cast<std::uint8_t>(field.words()));
    out.number(std::uint8_t{0});
    out.number(std::uint32_t{0});
    write_text(out, field.name, StatField::kNameBytes);
    write_text(out, field.unit, StatField::kUnitBytes);
    write_text(out, field.help, StatField::kHelpBytes);
  }
}

std::uint32_t u32(std::size_t value) {
  return static_cast<std::uint32_t>(value);
}

}  // namespace

std::size_t StatLayout::block_bytes() const {
  return round_to_pages((SeqWords::kHeadWords + value_words()) * kWordBytes);
}

std::size_t StatLayout::first_block() const {
  return round_to_pages(kHeadBytes + (engine.size() + session.size() + path.size()) * kFieldBytes);
}

std::vector<std::byte> encode_stat_head(const StatLayout& layout,
                                        std::uint32_t pid,
                                        std::uint64_t created_unix_ns) {
  std::vector<std::byte> bytes(layout.first_block());
  ByteWriter out(bytes);
  out.raw(std::as_bytes(std::span(kMagic)));
  out.number(kStatVersion);
  out.number(u32(StatLayout::kHeadBytes));
  out.number(pid);
  for (int i = 0; i < 9; ++i) {
    out.number(std::uint32_t{0});
  }
  out.number(created_unix_ns);
  out.number(u32(layout.engine.size()));
  out.number(u32(layout.session.size()));
  out.number(u32(layout.path.size()));
  out.number(u32(StatLayout::kFieldBytes));
  out.number(u32(stat_words(layout.engine)));
  out.number(u32(stat_words(layout.session)));
  out.number(u32(stat_words(layout.path)));
  out.number(u32(layout.max_sessions));
  out.number(u32(layout.max_paths));
  out.number(u32(layout.blocks));
  out.number(std::uint64_t{layout.first_block()});
  out.number(std::uint64_t{layout.block_bytes()});
  out.number(std::uint64_t{0});
  write_table(out, layout.engine);
  write_table(out, layout.session);
  write_table(out, layout.path);
  return bytes;
}

void StatWriter::text(std::string_view text, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) {
    const std::string_view part = text.substr(std::min(i * kWordBytes, text.size()), kWordBytes);
    std::uint64_t word = 0;
    if (!part.empty()) {
      std::memcpy(&word, part.data(), part.size());
    }
    number(word);
  }
}

}  // namespace harp
