#include "lightcc_cuda/nccl/buffer.hpp"

#include <utility>

namespace lightcc::cuda {
namespace {

// Both halves begin at a page, in which NCCL counts what is registered.
constexpr std::size_t kHalfAlignment = 4096;

}  // namespace

Result<std::unique_ptr<NcclBuffer>> NcclBuffer::make(const NcclLibrary& library,
                                                     const Driver& driver,
                                                     NcclHandle* comm,
                                                     std::size_t bytes) {
  const std::size_t half = (bytes + kHalfAlignment - 1) / kHalfAlignment * kHalfAlignment;
  std::byte* memory = nullptr;
  if (library.can_register()) {
    void* made = nullptr;
    LIGHTCC_RETURN_IF_ERROR(
        library.check(library.call().allocate(&made, 2 * half), "ncclMemAlloc", nullptr));
    memory = static_cast<std::byte*>(made);
  } else {
    Address made = 0;
    LIGHTCC_RETURN_IF_ERROR(driver.check(driver.call().allocate(&made, 2 * half), "cuMemAlloc"));
    memory = reinterpret_cast<std::byte*>(made);  // NOLINT: of the GPU
  }
  std::unique_ptr<NcclBuffer> buffer(new NcclBuffer(library, driver, memory, half));
  if (library.can_register()) {
    LIGHTCC_RETURN_IF_ERROR(library.check(
        library.call().register_memory(comm, memory, 2 * half, &buffer->registration_),
        "ncclCommRegister",
        comm));
  }
  return buffer;
}

NcclBuffer::~NcclBuffer() {
  if (library_.can_register()) {
    (void)library_.call().free(memory_);
  } else {
    (void)driver_.call().free(gpu_address(memory_));
  }
}

Status NcclBuffer::deregister(NcclHandle* comm) {
  void* const registration = std::exchange(registration_, nullptr);
  return registration == nullptr
             ? Status()
             : library_.check(library_.call().deregister_memory(comm, registration),
                              "ncclCommDeregister",
                              comm);
}

}  // namespace lightcc::cuda
