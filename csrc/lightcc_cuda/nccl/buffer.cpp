#include "lightcc_cuda/nccl/buffer.hpp"

#include <algorithm>
#include <utility>

#include "lightcc_cuda/driver/copy_launch.hpp"

namespace lightcc::cuda {
namespace {

// A launch takes the time of some copies.
constexpr std::size_t kFewestForKernel = 4;
// Both halves begin at a page, in which NCCL counts what is registered.
constexpr std::size_t kHalfAlignment = 4096;

u8* bytes_at(const std::byte* data) {
  return reinterpret_cast<u8*>(gpu_address(data));  // NOLINT: of the GPU
}

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

Status NcclBuffer::pack(const PackedTensors& tensors,
                        const KernelTable* kernels,
                        StreamHandle* stream) const {
  return copy_all(tensors, false, kernels, stream);
}

Status NcclBuffer::unpack(const PackedTensors& tensors,
                          const KernelTable* kernels,
                          StreamHandle* stream) const {
  return copy_all(tensors, true, kernels, stream);
}

Status NcclBuffer::copy_all(const PackedTensors& tensors,
                            bool unpacks,
                            const KernelTable* kernels,
                            StreamHandle* stream) const {
  const std::vector<TensorSpan>& spans = tensors.spans;
  const bool has_all = std::ranges::all_of(spans, [unpacks](const TensorSpan& span) {
    return unpacks ? span.out != nullptr : span.in != nullptr;
  });
  const bool by_kernel = kernels != nullptr && has_all && spans.size() >= kFewestForKernel;
  const std::size_t step = by_kernel ? kMaxBucketRows : 1;
  std::byte* next = unpacks ? result() : input();
  for (std::size_t first = 0; first < spans.size(); first += step) {
    const std::size_t end = std::min(first + step, spans.size());
    std::size_t bytes = 0;
    for (std::size_t i = first; i < end; ++i) {
      bytes += spans[i].count * tensors.element_bytes;
    }
    LIGHTCC_RETURN_IF_ERROR(by_kernel
                                ? launch_run(tensors, {first, end}, unpacks, next, *kernels, stream)
                                : copy_one(spans[first], bytes, unpacks, next, stream));
    next += bytes;
  }
  return {};
}

Status NcclBuffer::launch_run(const PackedTensors& tensors,
                              std::pair<std::size_t, std::size_t> run,
                              bool unpacks,
                              std::byte* packed,
                              const KernelTable& kernels,
                              StreamHandle* stream) const {
  BucketArguments arguments{};
  for (std::size_t i = run.first; i < run.second; ++i) {
    const TensorSpan& span = tensors.spans[i];
    arguments.rows[arguments.count++] = {.tensor = bytes_at(unpacks ? span.out : span.in),
                                         .first = arguments.total};
    arguments.total += span.count;
  }
  arguments.bucket = bytes_at(packed);
  arguments.unpacks = unpacks ? 1 : 0;
  return launch_copies(driver_, kernels, tensors.element_bytes, stream, arguments);
}

Status NcclBuffer::copy_one(const TensorSpan& span,
                            std::size_t bytes,
                            bool unpacks,
                            std::byte* packed,
                            StreamHandle* stream) const {
  if (!unpacks && span.in == nullptr) {
    return driver_.check(driver_.call().fill(gpu_address(packed), 0, bytes, stream),
                         "cuMemsetD8Async");
  }
  if (unpacks && span.out == nullptr) {
    return {};
  }
  return driver_.check(driver_.call().copy_on_device(gpu_address(unpacks ? span.out : packed),
                                                     gpu_address(unpacks ? packed : span.in),
                                                     bytes,
                                                     stream),
                       "cuMemcpyDtoDAsync");
}

}  // namespace lightcc::cuda
