// One of the four rings that an AF_XDP socket shares with the kernel: single producer, single
// consumer, counters that grow for ever (Documentation/networking/af_xdp.rst of Linux).
#pragma once

#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace harp {

/// `T`: xdp_desc, or std::uint64_t for an address. This side is the producer of fill and transmit
/// rings, and the consumer of completion and receive rings.
template <typename T>
class XskRing {
 public:
  XskRing() = default;
  XskRing(const XskRing&) = delete;
  XskRing& operator=(const XskRing&) = delete;
  ~XskRing() {
    if (memory_ != nullptr) {
      ::munmap(memory_, bytes_);
    }
  }

  /// False, with errno, where it cannot be mapped. `entries`: a power of two.
  bool map(int socket, off_t page_offset, const xdp_ring_offset& at, std::uint32_t entries) {
    bytes_ = at.desc + entries * sizeof(T);
    void* const memory = ::mmap(
        nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, socket, page_offset);
    if (memory == MAP_FAILED) {
      return false;
    }
    memory_ = static_cast<std::byte*>(memory);
    producer_ = reinterpret_cast<std::uint32_t*>(memory_ + at.producer);
    consumer_ = reinterpret_cast<std::uint32_t*>(memory_ + at.consumer);
    flags_ = reinterpret_cast<std::uint32_t*>(memory_ + at.flags);
    slots_ = reinterpret_cast<T*>(memory_ + at.desc);
    entries_ = entries;
    return true;
  }

  /// The kernel asks for a system call before it looks at this ring.
  bool needs_wakeup() const {
    return (std::atomic_ref(*flags_).load(std::memory_order_relaxed) & XDP_RING_NEED_WAKEUP) != 0;
  }

  // Producer.
  std::uint32_t room() const {
    return entries_ - (mine_ - std::atomic_ref(*consumer_).load(std::memory_order_acquire));
  }
  /// There is room. The kernel sees it after publish().
  void put(const T& value) { slots_[mine_++ & (entries_ - 1)] = value; }
  void publish() { std::atomic_ref(*producer_).store(mine_, std::memory_order_release); }
  /// The kernel has taken all that was published.
  bool is_drained() const { return room() == entries_; }

  // Consumer.
  std::uint32_t count() const {
    return std::atomic_ref(*producer_).load(std::memory_order_acquire) - mine_;
  }
  /// There is one. The kernel gets its slot back after release().
  T take() { return slots_[mine_++ & (entries_ - 1)]; }
  void release() { std::atomic_ref(*consumer_).store(mine_, std::memory_order_release); }

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint32_t* producer_ = nullptr;
  std::uint32_t* consumer_ = nullptr;
  std::uint32_t* flags_ = nullptr;
  T* slots_ = nullptr;
  std::uint32_t entries_ = 0;
  std::uint32_t mine_ = 0;  ///< This side's counter, published or not.
};

}  // namespace harp
