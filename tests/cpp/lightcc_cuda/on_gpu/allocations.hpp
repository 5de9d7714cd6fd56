// What the process has got from operator new, by address, once somebody asks for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>

namespace lightcc::cuda::testing {

/// Past operator new, which writes into the map that this is for.
template <typename T>
struct Malloc {
  using value_type = T;
  Malloc() = default;
  template <typename Other>
  explicit(false) Malloc(const Malloc<Other>& /*other*/) {}
  T* allocate(std::size_t count) { return static_cast<T*>(std::malloc(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t /*count*/) { std::free(memory); }
  bool operator==(const Malloc& /*other*/) const { return true; }
};

struct Allocation {
  std::uintptr_t first;
  std::size_t bytes;
};

class Allocations {
 public:
  void add(const void* first, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    all_[reinterpret_cast<std::uintptr_t>(first)] = bytes;
  }
  void remove(const void* first) {
    const std::lock_guard lock(mutex_);
    all_.erase(reinterpret_cast<std::uintptr_t>(first));
  }
  /// That which has `address`, or ends there.
  std::optional<Allocation> find(std::uintptr_t address) {
    const std::lock_guard lock(mutex_);
    auto next = all_.upper_bound(address);
    if (next == all_.begin()) {
      return std::nullopt;
    }
    --next;
    return address - next->first <= next->second
               ? std::optional(Allocation{next->first, next->second})
               : std::nullopt;
  }

 private:
  using Entry = std::pair<const std::uintptr_t, std::size_t>;

  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t, std::less<>, Malloc<Entry>> all_;
};

}  // namespace lightcc::cuda::testing
