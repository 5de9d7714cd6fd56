#include "lightcc/transport/shm/byte_ring.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "lightcc/base/status.hpp"

namespace lightcc {

namespace {

std::uint64_t load(std::uint64_t& counter) {
  return std::atomic_ref<std::uint64_t>(counter).load(std::memory_order_seq_cst);
}

void store(std::uint64_t& counter, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(counter).store(value, std::memory_order_release);
}

}  // namespace

ByteRingEnd::ByteRingEnd(std::span<std::byte> memory, std::size_t capacity) {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(ByteRingHeader) == 0;
  if (aligned && std::has_single_bit(capacity) && memory.size() >= sizeof(ByteRingHeader) &&
      memory.size() - sizeof(ByteRingHeader) >= capacity) {
    header_ = reinterpret_cast<ByteRingHeader*>(memory.data());
    data_ = memory.data() + sizeof(ByteRingHeader);
    capacity_ = capacity;
  }
}

Status ByteRingEnd::corrupt() const {
  if (header_ == nullptr) {
    return make_error(ErrorCode::kInternal, "a byte ring was made from unsuitable memory");
  }
  return make_error(ErrorCode::kPeerFailed,
                    "a rank of this host damaged the counters of a shared-memory stream");
}

// hot
Result<std::size_t> ByteRingWriter::try_write(std::span<const std::byte> bytes) {
  if (header_ == nullptr) {
    return corrupt();
  }
  const std::uint64_t used = count_ - load(header_->read);
  if (used > capacity_) {
    return corrupt();
  }
  const std::size_t free = capacity_ - static_cast<std::size_t>(used);
  const std::size_t count = std::min(free, bytes.size());
  if (count == 0) {
    return count;
  }
  const std::size_t before_end = std::min(count, capacity_ - position(count_));
  std::memcpy(data_ + position(count_), bytes.data(), before_end);
  if (count != before_end) {
    std::memcpy(data_, bytes.data() + before_end, count - before_end);
  }
  count_ += count;
  store(header_->written, count_);
  return count;
}

// hot
Result<std::size_t> ByteRingReader::try_read(std::span<std::byte> into) {
  if (header_ == nullptr) {
    return corrupt();
  }
  const std::uint64_t filled = load(header_->written) - count_;
  if (filled > capacity_) {
    return corrupt();
  }
  const std::size_t count = std::min(static_cast<std::size_t>(filled), into.size());
  if (count == 0) {
    return count;
  }
  const std::size_t before_end = std::min(count, capacity_ - position(count_));
  std::memcpy(into.data(), data_ + position(count_), before_end);
  if (count != before_end) {
    std::memcpy(into.data() + before_end, data_, count - before_end);
  }
  count_ += count;
  store(header_->read, count_);
  return count;
}

}  // namespace lightcc
