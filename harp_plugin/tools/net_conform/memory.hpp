// Buffers that notice what is written beside them, and contents that can be told from any others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace net_conform {

/// Memory that ends where a page begins that nobody may touch. Filled with kCanary.
class GuardedBuffer {
 public:
  static constexpr std::byte kCanary{0xC5};

  explicit GuardedBuffer(std::size_t bytes);
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;
  ~GuardedBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }
  /// The last `bytes` of it, so that one byte more is one too many.
  std::span<std::byte> last(std::size_t bytes) const { return span().last(bytes); }
  void fill_with_canary() const;
  void make_read_only() const;

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Writes what message `number` of stream `seed` holds.
void fill_pattern(std::span<std::byte> data, std::uint64_t seed, std::uint64_t number);

/// Empty: `data` is that message. Else what differs, and where.
std::string find_difference(std::span<const std::byte> data,
                            std::uint64_t seed,
                            std::uint64_t number);

/// Where in `data` a byte is not kCanary, or its size.
std::size_t first_touched(std::span<const std::byte> data);

}  // namespace net_conform
