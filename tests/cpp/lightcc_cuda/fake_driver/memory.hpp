// Memory of the fake GPU, and pinned memory of the host.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc_cuda/driver/functions.hpp"

namespace lightcc::cuda::fake {

inline constexpr std::size_t kPage = 4096;

class DeviceMemories {
 public:
  /// 0: there is none. `readable`: by the host, too. `is_of_pool`: a stream frees it.
  Address allocate(std::size_t bytes, Device device, bool readable, bool is_of_pool) {
    void* const memory = std::malloc(bytes);  // Its ends are AddressSanitizer's.
    std::memset(memory, 0xFB, bytes);
    void* const face =
        readable ? memory : ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (face == MAP_FAILED) {
      std::free(memory);
      return 0;
    }
    const auto address = reinterpret_cast<Address>(face);
    const std::lock_guard lock(mutex_);
    all_[address] = {
        {static_cast<std::byte*>(memory), &std::free}, bytes, device, is_of_pool, false};
    bytes_ += bytes;
    return address;
  }

  /// Nobody may use it from now on but what is queued. False: it is none of that kind.
  bool begin_to_free(Address address, bool is_of_pool) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(address);
    return found != all_.end() && found->second.is_of_pool == is_of_pool &&
           !std::exchange(found->second.is_freed, true);
  }
  /// False: what is queued still uses it.
  bool free(Address address) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(address);
    const Memory& memory = found->second;
    if (void* const face = reinterpret_cast<void*>(address); face != memory.first.get()) {
      ::munmap(face, memory.bytes);
    }
    bytes_ -= memory.bytes;
    const bool is_unused = memory.first.use_count() == 1;
    all_.erase(found);
    return is_unused;
  }
  /// Parts in what is at addresses, for what is queued; null: it is freed.
  std::vector<std::shared_ptr<std::byte>> parts_of(const std::vector<Address>& used) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<std::byte>> parts;
    for (const Address address : used) {
      if (const auto found = search(address); found != all_.end()) {
        parts.push_back(found->second.is_freed ? nullptr : found->second.first);
      }
    }
    return parts;
  }

  /// All GPUs have so many.
  std::size_t bytes() {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

  /// Where the bytes at `address` are; null: it is no device memory.
  std::byte* find(Address address) {
    const std::lock_guard lock(mutex_);
    const auto found = search(address);
    return found == all_.end() ? nullptr : found->second.first.get() + (address - found->first);
  }

  /// Whose memory is at `address`; none: it is no device memory.
  std::optional<Device> device_of(Address address) {
    const std::lock_guard lock(mutex_);
    const auto found = search(address);
    return found == all_.end() ? std::nullopt : std::optional(found->second.device);
  }

  /// Every word that is an address, by what is there. Returns the addresses.
  std::vector<Address> translate(std::vector<std::byte>& arguments) {
    std::vector<Address> used;
    for (std::size_t at = 0; at + sizeof(Address) <= arguments.size(); at += sizeof(Address)) {
      Address word = 0;
      std::memcpy(&word, arguments.data() + at, sizeof(word));
      if (std::byte* const memory = find(word); memory != nullptr) {
        std::memcpy(arguments.data() + at, &memory, sizeof(memory));
        used.push_back(word);
      }
    }
    return used;
  }

 private:
  struct Memory {
    std::shared_ptr<std::byte> first;
    std::size_t bytes;
    Device device;
    bool is_of_pool;
    bool is_freed;
  };

  /// What has `address`. The mutex is held.
  std::map<Address, Memory>::iterator search(Address address) {
    auto next = all_.upper_bound(address);
    if (next == all_.begin()) {
      return all_.end();
    }
    --next;
    return address - next->first < next->second.bytes ? next : all_.end();
  }

  std::mutex mutex_;
  std::map<Address, Memory> all_;
  std::size_t bytes_ = 0;
};

class PinnedMemories {
 public:
  void* allocate(std::size_t bytes) {
    void* const memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    const std::lock_guard lock(mutex_);
    all_[static_cast<std::byte*>(memory)] = bytes;
    bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
    return memory;
  }

  bool free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(static_cast<std::byte*>(memory));
    if (found == all_.end()) {
      return false;
    }
    bytes_ -= found->second;
    all_.erase(found);
    std::free(memory);
    return true;
  }

  bool has(const void* memory, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(memory);
    const std::lock_guard lock(mutex_);
    auto next = all_.upper_bound(const_cast<std::byte*>(first));
    if (next == all_.begin()) {
      return false;
    }
    --next;
    return first + bytes <= next->first + next->second;
  }

  void begin_growth() {
    const std::lock_guard lock(mutex_);
    first_bytes_ = most_bytes_ = bytes_;
  }
  /// The most that there was at a time, beyond what there was at begin_growth().
  std::size_t growth() {
    const std::lock_guard lock(mutex_);
    return most_bytes_ - first_bytes_;
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> all_;
  std::size_t bytes_ = 0;
  std::size_t first_bytes_ = 0;
  std::size_t most_bytes_ = 0;
};

}  // namespace lightcc::cuda::fake
