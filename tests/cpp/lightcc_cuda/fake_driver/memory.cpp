// Memory, and copies of it.
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "lightcc_cuda/fake_driver/calls.hpp"

namespace lightcc::cuda::fake {
namespace {

/// Copies in the stream's order; waits where the host's memory is not pinned.
void enqueue_copy(StreamHandle* stream,
                  std::byte* to,
                  const std::byte* from,
                  std::size_t bytes,
                  bool pinned,
                  const std::vector<Address>& used) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); }, used);
  if (!pinned) {
    stream_of(stream).add_turn()->wait();
  }
}

/// Makes a copy to the host wait for other settings, if these say so.
void hold_copy(StreamHandle* stream, Device device, int turn) {
  if (settings().holds(device, turn)) {
    enqueue(stream, [current = settings().current()] {
      while (settings().current() == current) {
        ::usleep(100);
      }
    });
  }
}

Code allocate(Address* address, std::size_t bytes, bool is_of_pool) {
  if (bytes == 0) {
    return kInvalidValue;
  }
  if (device_memories().bytes() + bytes > memory_bytes()) {
    return kOutOfMemory;
  }
  *address = device_memories().allocate(
      bytes, contexts.back()->device, settings().number("unified") != 0, is_of_pool);
  if (*address == 0) {
    return kOutOfMemory;
  }
  ++live_objects;
  return kSuccess;
}

}  // namespace
}  // namespace lightcc::cuda::fake

namespace cuda = lightcc::cuda;
namespace fake = lightcc::cuda::fake;
using cuda::Address;
using cuda::Device;
using cuda::Option;
using fake::settings;

LIGHTCC_API cuMemAlloc_v2(Address* address, std::size_t bytes) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuMemAlloc_v2")
  return fake::allocate(address, bytes, false);
}
LIGHTCC_API cuMemFree_v2(Address address) {
  LIGHTCC_SPOILS_CAPTURE
  const Device device = fake::device_memories().device_of(address).value_or(0);
  if (!fake::device_memories().begin_to_free(address, false)) {
    return fake::kInvalidValue;
  }
  fake::Stream::drain(device);
  (void)fake::device_memories().free(address);
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuDeviceGetDefaultMemPool(cuda::PoolHandle** pool, Device /*device*/) {
  *pool = nullptr;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemPoolGetAttribute(cuda::PoolHandle* /*pool*/, Option attribute, void* value) {
  *static_cast<std::uint64_t*>(value) = 0;
  return attribute == cuda::kReleaseThreshold ? cuda::kSuccess : fake::kInvalidValue;
}
LIGHTCC_API cuMemPoolSetAttribute(cuda::PoolHandle* /*pool*/, Option attribute, void* /*value*/) {
  return attribute == cuda::kReleaseThreshold ? cuda::kSuccess : fake::kInvalidValue;
}
LIGHTCC_API cuMemAllocAsync(Address* address, std::size_t bytes, cuda::StreamHandle* /*stream*/) {
  LIGHTCC_NEEDS_CONTEXT("cuMemAllocAsync")
  return fake::allocate(address, bytes, true);
}
LIGHTCC_API cuMemFreeAsync(Address address, cuda::StreamHandle* stream) {
  if ((fake::contexts.empty() && reinterpret_cast<std::uintptr_t>(stream) <= 2) ||
      !fake::device_memories().begin_to_free(address, true)) {
    return fake::kInvalidValue;
  }
  fake::stream_of(stream).add([address] {
    if (!fake::device_memories().free(address)) {
      fake::break_by_memory();
    }
  });
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuMemHostAlloc")
  *memory = fake::pinned_memories().allocate(bytes);
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemFreeHost(void* memory) {
  LIGHTCC_SPOILS_CAPTURE
  fake::Stream::drain(fake::contexts.empty() ? 0 : fake::contexts.back()->device);
  if (!fake::pinned_memories().free(memory)) {
    return fake::kInvalidValue;
  }
  --fake::live_objects;
  return cuda::kSuccess;
}
// Any context will do.
LIGHTCC_API cuPointerGetAttribute(void* value, Option attribute, Address address) {
  LIGHTCC_NEEDS_CONTEXT("cuPointerGetAttribute")
  std::optional<Device> device = fake::device_memories().device_of(address);
  if (!device.has_value() && settings().number("unified") != 0) {
    device = 0;
  }
  if (!device.has_value()) {
    return fake::kInvalidValue;
  }
  if (attribute == cuda::kMemoryKindOfAddress) {
    *static_cast<unsigned*>(value) = cuda::kMemoryOfDevice;
  } else {
    *static_cast<int*>(value) = *device;
  }
  return cuda::kSuccess;
}
LIGHTCC_API cuMemcpyDtoHAsync_v2(void* to,
                                 Address from,
                                 std::size_t bytes,
                                 cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemcpyDtoHAsync_v2")
  const std::byte* const memory = fake::find_device_memory(from);
  if (memory == nullptr) {
    return fake::kInvalidValue;
  }
  const Device device = fake::device_memories().device_of(from).value_or(0);
  fake::hold_copy(stream, device, fake::traffic().count_to_host(device, bytes));
  const bool pinned = fake::pinned_memories().has(to, bytes);
  fake::enqueue_copy(stream, static_cast<std::byte*>(to), memory, bytes, pinned, {from});
  return cuda::kSuccess;
}
LIGHTCC_API cuMemcpyDtoDAsync_v2(Address to,
                                 Address from,
                                 std::size_t bytes,
                                 cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemcpyDtoDAsync_v2")
  std::byte* const target = fake::find_device_memory(to);
  const std::byte* const source = fake::find_device_memory(from);
  if (target == nullptr || source == nullptr) {
    return fake::kInvalidValue;
  }
  fake::enqueue_copy(stream, target, source, bytes, true, {to, from});
  return cuda::kSuccess;
}
LIGHTCC_API cuMemsetD8Async(Address to,
                            unsigned char value,
                            std::size_t bytes,
                            cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemsetD8Async")
  std::byte* const memory = fake::find_device_memory(to);
  if (memory == nullptr) {
    return fake::kInvalidValue;
  }
  fake::enqueue(stream, [=] { std::memset(memory, value, bytes); }, {to});
  return cuda::kSuccess;
}
LIGHTCC_API cuMemcpyHtoDAsync_v2(Address to,
                                 const void* from,
                                 std::size_t bytes,
                                 cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuMemcpyHtoDAsync_v2")
  std::byte* const memory = fake::find_device_memory(to);
  if (memory == nullptr) {
    return fake::kInvalidValue;
  }
  fake::traffic().count_to_device(fake::device_memories().device_of(to).value_or(0), bytes);
  const bool pinned = fake::pinned_memories().has(from, bytes);
  fake::enqueue_copy(stream, memory, static_cast<const std::byte*>(from), bytes, pinned, {to});
  return cuda::kSuccess;
}
