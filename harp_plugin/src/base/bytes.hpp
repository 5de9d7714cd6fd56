// Bounds-checked little-endian reading and writing of bytes that somebody else owns: the only way
// in which HARP interprets a packet. Nothing allocates.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace harp {

static_assert(std::endian::native == std::endian::little, "big-endian machines are not supported");

/// Copies `from` to where `to` begins, which has room for it, and returns what lies behind.
inline std::span<std::byte> copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) {
    std::memcpy(to.data(), from.data(), from.size());
  }
  return to.subspan(from.size());
}

/// Writes into a buffer of fixed size. After the first write that does not fit, ok() is false and
/// nothing more is written.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> out) : out_(out) {}

  template <typename T>
    requires std::is_unsigned_v<T>
  [[gnu::always_inline]] void number(T value) {
    raw(std::as_bytes(std::span(&value, 1)));
  }
  [[gnu::always_inline]] void raw(std::span<const std::byte> bytes) {
    if (!ok_ || bytes.size() > out_.size() - written_) {
      ok_ = false;
      return;
    }
    std::memcpy(out_.data() + written_, bytes.data(), bytes.size());
    written_ += bytes.size();
  }
  bool ok() const { return ok_; }
  std::size_t written() const { return written_; }

 private:
  std::span<std::byte> out_;
  std::size_t written_ = 0;
  bool ok_ = true;
};

/// Reads from bytes of unknown origin. After the first failure every read fails and ok() is false;
/// a failed read returns zero or empty.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_unsigned_v<T>
  T number() {
    T value{};
    const auto bytes = raw(sizeof(T));
    if (ok_) {
      std::memcpy(&value, bytes.data(), sizeof(T));
    }
    return value;
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
  void raw_into(std::span<std::byte> out) {
    const auto bytes = raw(out.size());
    if (ok_ && !out.empty()) {
      std::memcpy(out.data(), bytes.data(), out.size());
    }
  }
  void fail() {
    ok_ = false;
    rest_ = {};
  }
  bool ok() const { return ok_; }
  /// Everything was read, and nothing failed.
  bool finished() const { return ok_ && rest_.empty(); }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace harp
