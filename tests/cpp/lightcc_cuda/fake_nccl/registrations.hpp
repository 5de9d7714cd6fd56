// Memory that is registered with communicators of the fake NCCL.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "lightcc_cuda/fake_nccl/fake_nccl.hpp"
#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda::fake {

struct Registration {
  NcclHandle* comm;
  std::uintptr_t begin;
  std::uintptr_t end;
};

inline std::mutex registrations_mutex;
inline std::map<std::uintptr_t, Registration> registrations;  // By handle, which is a number.
inline std::uintptr_t last_registration = 0;
inline Registrations counted_registrations;

inline void* add_registration(NcclHandle* comm, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(registrations_mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  registrations[++last_registration] = {.comm = comm, .begin = begin, .end = begin + bytes};
  ++counted_registrations.made;
  return reinterpret_cast<void*>(last_registration);
}

/// False: there is no such one.
inline bool end_registration(NcclHandle* comm, void* handle) {
  const std::lock_guard lock(registrations_mutex);
  const auto found = registrations.find(reinterpret_cast<std::uintptr_t>(handle));
  if (found == registrations.end() || found->second.comm != comm) {
    return false;
  }
  registrations.erase(found);
  ++counted_registrations.ended;
  return true;
}

/// Those of a communicator that is aborted go with it.
inline void drop_registrations(NcclHandle* comm) {
  const std::lock_guard lock(registrations_mutex);
  std::erase_if(registrations, [comm](const auto& one) { return one.second.comm == comm; });
}

inline bool has_registrations(NcclHandle* comm) {
  const std::lock_guard lock(registrations_mutex);
  return std::ranges::any_of(registrations,
                             [comm](const auto& one) { return one.second.comm == comm; });
}

inline bool is_registered(const void* memory) {
  const std::lock_guard lock(registrations_mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return std::ranges::any_of(registrations, [address](const auto& one) {
    return address >= one.second.begin && address < one.second.end;
  });
}

/// Where memory begins in what is registered with a communicator; -1: not all of it is.
inline std::int64_t place_in_registration(NcclHandle* comm, const void* memory, std::size_t bytes) {
  const std::lock_guard lock(registrations_mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  for (const auto& [handle, one] : registrations) {
    if (one.comm == comm && begin >= one.begin && begin + bytes <= one.end) {
      return static_cast<std::int64_t>(begin - one.begin);
    }
  }
  return -1;
}

}  // namespace lightcc::cuda::fake
