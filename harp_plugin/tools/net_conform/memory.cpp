#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace net_conform {
namespace {

std::size_t page_bytes() {
  static const auto kBytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return kBytes;
}

/// splitmix64's finaliser: every bit of the input reaches every bit of the result.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

std::uint64_t word_of(std::uint64_t start, std::size_t index) {
  return mix(start + index);
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes) : bytes_(bytes) {
  const std::size_t page = page_bytes();
  const std::size_t room = (bytes + page - 1) / page * page;
  mapped_bytes_ = room + page;
  mapping_ =
      ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    throw std::bad_alloc();
  }
  auto* const begin = static_cast<std::byte*>(mapping_);
  ::mprotect(begin + room, page, PROT_NONE);
  data_ = begin + room - bytes;
  fill_with_canary();
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      data_(other.data_),
      bytes_(other.bytes_) {}

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GuardedBuffer::~GuardedBuffer() {
  // After a failure a plugin may still write to what it was given: then the memory stays.
  if (mapping_ != nullptr && std::uncaught_exceptions() == 0) {
    ::munmap(mapping_, mapped_bytes_);
  }
}

void GuardedBuffer::fill_with_canary() const {
  std::fill_n(data_, bytes_, kCanary);
}

void GuardedBuffer::make_read_only() const {
  ::mprotect(mapping_, mapped_bytes_ - page_bytes(), PROT_READ);
}

void fill_pattern(std::span<std::byte> data, std::uint64_t seed, std::uint64_t number) {
  const std::uint64_t start = mix(seed ^ mix(number));
  for (std::size_t i = 0; i < data.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_of(start, i);
    std::memcpy(data.data() + i, &word, std::min(sizeof(word), data.size() - i));
  }
}

std::string find_difference(std::span<const std::byte> data,
                            std::uint64_t seed,
                            std::uint64_t number) {
  const std::uint64_t start = mix(seed ^ mix(number));
  for (std::size_t i = 0; i < data.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_of(start, i);
    if (std::memcmp(data.data() + i, &word, std::min(sizeof(word), data.size() - i)) != 0) {
      std::array<char, 96> text{};
      std::snprintf(text.data(),
                    text.size(),
                    "message %llu of %zu bytes differs from byte %zu on",
                    static_cast<unsigned long long>(number),
                    data.size(),
                    i);
      return text.data();
    }
  }
  return {};
}

std::size_t first_touched(std::span<const std::byte> data) {
  const auto found =
      std::ranges::find_if(data, [](std::byte byte) { return byte != GuardedBuffer::kCanary; });
  return static_cast<std::size_t>(found - data.begin());
}

}  // namespace net_conform
