// What the driver's functions share: what handles point to, and what there is one of.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "lightcc_cuda/driver/functions.hpp"
#include "lightcc_cuda/fake_driver/memory.hpp"
#include "lightcc_cuda/fake_driver/settings.hpp"
#include "lightcc_cuda/fake_driver/stream.hpp"
#include "lightcc_cuda/fake_driver/traffic.hpp"
#include "lightcc_cuda/simulator/simulator.hpp"

namespace lightcc::cuda {

// What the handles point to.
struct StreamHandle {
  fake::Stream stream;
};
/// Recorded before other threads know of it.
struct EventHandle {
  unsigned flags;
  std::shared_ptr<fake::Turn> turn;
};
struct ModuleHandle {
  std::set<std::string, std::less<>> kernels;
};
struct ContextHandle {
  Device device;
};
struct FunctionHandle {
  std::size_t bytes;
  std::string (*run)(const simulator::Shape&, const void*);
};

namespace fake {

inline Settings& settings() {
  static Settings all("LIGHTCC_FAKE_CUDA",
                      {{"version", "12080"},
                       {"devices", "1"},
                       {"capability", "90"},
                       {"ptx", "1"},
                       {"cubin", "1"},
                       {"bus", "1"},
                       {"pools", "1"},
                       {"memory_mb", "1024"}});
  return all;
}
inline DeviceMemories& device_memories() {
  static auto* const kAll = new DeviceMemories;  // Streams may outlive static objects.
  return *kAll;
}
inline PinnedMemories& pinned_memories() {
  static auto* const kAll = new PinnedMemories;
  return *kAll;
}
inline Traffic& traffic() {
  static auto* const kAll = new Traffic;
  return *kAll;
}
inline std::size_t memory_bytes() {
  return static_cast<std::size_t>(settings().number("memory_mb")) << 20;
}

}  // namespace fake
}  // namespace lightcc::cuda
