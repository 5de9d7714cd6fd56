// Bounds-checked little-endian reading and writing: the only way wire memory is interpreted.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lightcc {

static_assert(std::endian::native == std::endian::little, "big-endian machines are not supported");

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Appends to a byte vector that the caller owns.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  void number(T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  /// An unsigned number in 7-bit groups, low first (LEB128).
  void varint(std::uint64_t value) {
    while (value >= 0x80) {
      number(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    number(static_cast<std::uint8_t>(value));
  }
  void raw(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  /// A varint length, then the bytes.
  void blob(std::span<const std::byte> bytes) {
    varint(bytes.size());
    raw(bytes);
  }
  void string(std::string_view text) { blob(as_bytes(text)); }

 private:
  Bytes& out_;
};

/// Reads from bytes of unknown origin. After the first failure every read fails and ok() is false;
/// a failed read returns zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  /// Everything was read, and nothing failed.
  bool finished() const { return ok_ && rest_.empty(); }
  std::size_t remaining() const { return rest_.size(); }

  template <typename T>
    requires std::is_arithmetic_v<T>
  T number() {
    T value{};
    const auto bytes = raw(sizeof(T));
    if (ok_) {
      std::memcpy(&value, bytes.data(), sizeof(T));
    }
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = number<std::uint8_t>();
      if (!ok_) {
        return 0;
      }
      if (shift == 63 && byte > 1) {
        break;
      }
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) {
        return value;
      }
    }
    fail();
    return 0;
  }
  std::span<const std::byte> raw(std::size_t count) {
    if (!ok_ || count > rest_.size()) {
      fail();
      return {};
    }
    const auto bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }
  std::span<const std::byte> blob(std::size_t maximum) {
    const std::uint64_t count = varint();
    if (count > maximum) {
      fail();
      return {};
    }
    return raw(static_cast<std::size_t>(count));
  }
  std::string string(std::size_t maximum) {
    const auto bytes = blob(maximum);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void fail() {
    ok_ = false;
    rest_ = {};
  }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace lightcc
