// Memory, and copies of it.
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <shared_mutex>

#include "lightcc_cuda/fake_driver/calls.hpp"

namespace lightcc::cuda::fake {
namespace {

/// Copies in the stream's order; waits where the host's memory is not pinned.
void enqueue_copy(
    StreamHandle* stream, std::byte* to, const std::byte* from, std::size_t bytes, bool pinned) {
  enqueue(stream, [=] {
    const std::shared_lock use(memory_in_use());
    std::memcpy(to, from, bytes);
  });
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
  if (bytes == 0) {
    return fake::kInvalidValue;
  }
  if (fake::device_memories().bytes() + bytes > fake::memory_bytes()) {
    return fake::kOutOfMemory;
  }
  *address = fake::device_memories().allocate(
      bytes, fake::contexts.back()->device, settings().number("unified") != 0);
  if (*address == 0) {
    return fake::kOutOfMemory;
  }
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuMemFree_v2(Address address) {
  LIGHTCC_SPOILS_CAPTURE
  if (!fake::device_memories().free(address)) {
    return fake::kInvalidValue;
  }
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
  fake::enqueue_copy(stream, static_cast<std::byte*>(to), memory, bytes, pinned);
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
  fake::enqueue_copy(stream, target, source, bytes, true);
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
  fake::enqueue(stream, [=] {
    const std::shared_lock use(fake::memory_in_use());
    std::memset(memory, value, bytes);
  });
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
  fake::enqueue_copy(stream, memory, static_cast<const std::byte*>(from), bytes, pinned);
  return cuda::kSuccess;
}
