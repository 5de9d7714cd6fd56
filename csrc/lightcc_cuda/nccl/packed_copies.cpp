#include "lightcc_cuda/nccl/packed_copies.hpp"

#include <algorithm>
#include <utility>

#include "lightcc_cuda/driver/copy_launch.hpp"

namespace lightcc::cuda {
namespace {

// A launch takes the time of some copies.
constexpr std::size_t kFewestForKernel = 4;

u8* bytes_at(const std::byte* data) {
  return reinterpret_cast<u8*>(gpu_address(data));  // NOLINT: of the GPU
}

/// `run`: the first tensor, and the one behind the last.
Status launch_run(const PackedTensors& tensors,
                  std::pair<std::size_t, std::size_t> run,
                  bool unpacks,
                  const std::byte* packed,
                  const CopySite& site) {
  BucketArguments arguments{};
  for (std::size_t i = run.first; i < run.second; ++i) {
    const TensorSpan& span = tensors.spans[i];
    arguments.rows[arguments.count++] = {.tensor = bytes_at(unpacks ? span.out : span.in),
                                         .first = arguments.total};
    arguments.total += span.count;
  }
  arguments.bucket = bytes_at(packed);
  arguments.unpacks = unpacks ? 1 : 0;
  return launch_copies(site.driver, *site.kernels, tensors.element_bytes, site.stream, arguments);
}

Status copy_one(const TensorSpan& span,
                std::size_t bytes,
                bool unpacks,
                const std::byte* packed,
                const CopySite& site) {
  const Functions& call = site.driver.call();
  if (!unpacks && span.in == nullptr) {
    return site.driver.check(call.fill(gpu_address(packed), 0, bytes, site.stream),
                             "cuMemsetD8Async");
  }
  if (unpacks && span.out == nullptr) {
    return {};
  }
  return site.driver.check(call.copy_on_device(gpu_address(unpacks ? span.out : packed),
                                               gpu_address(unpacks ? packed : span.in),
                                               bytes,
                                               site.stream),
                           "cuMemcpyDtoDAsync");
}

Status copy_all(const PackedTensors& tensors,
                bool unpacks,
                const std::byte* packed,
                const CopySite& site) {
  const std::vector<TensorSpan>& spans = tensors.spans;
  const bool has_all = std::ranges::all_of(spans, [unpacks](const TensorSpan& span) {
    return unpacks ? span.out != nullptr : span.in != nullptr;
  });
  const bool by_kernel = site.kernels != nullptr && has_all && spans.size() >= kFewestForKernel;
  const std::size_t step = by_kernel ? kMaxBucketRows : 1;
  const std::byte* next = packed;
  for (std::size_t first = 0; first < spans.size(); first += step) {
    const std::size_t end = std::min(first + step, spans.size());
    std::size_t bytes = 0;
    for (std::size_t i = first; i < end; ++i) {
      bytes += spans[i].count * tensors.element_bytes;
    }
    LIGHTCC_RETURN_IF_ERROR(by_kernel ? launch_run(tensors, {first, end}, unpacks, next, site)
                                      : copy_one(spans[first], bytes, unpacks, next, site));
    next += bytes;
  }
  return {};
}

}  // namespace

// NOLINTNEXTLINE(misc-const-correctness): the GPU writes what is packed.
Status pack_tensors(const PackedTensors& tensors, std::byte* packed, const CopySite& site) {
  return copy_all(tensors, false, packed, site);
}

Status unpack_tensors(const PackedTensors& tensors, const std::byte* packed, const CopySite& site) {
  return copy_all(tensors, true, packed, site);
}

}  // namespace lightcc::cuda
