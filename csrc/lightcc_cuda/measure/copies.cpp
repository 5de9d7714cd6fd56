// Copies of one tensor, which are the ceiling of all that moves memory, and of many tensors to and
// from a bucket.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/kernels/bucket.hpp"
#include "lightcc_cuda/kernels/indices.hpp"
#include "lightcc_cuda/measure/bench.hpp"

namespace lightcc::cuda {
namespace {

constexpr std::size_t kCopiedBytes = sizeof(float);
// Where frameworks let tensors begin.
constexpr u64 kTensorAlignment = 256;

u8* on_gpu(Address address) {
  return reinterpret_cast<u8*>(address);  // NOLINT: of the GPU
}

/// A copy of `count` elements is measured, and compared.
Result<Measured> measure_copy(Bench& bench,
                              const std::string& name,
                              std::size_t elements,
                              Address target,
                              std::span<const std::byte> expected,
                              const std::function<Status(std::size_t)>& copy) {
  LIGHTCC_RETURN_IF_ERROR(bench.spoil(target, expected.size()));
  LIGHTCC_ASSIGN_OR_RETURN(Measured measured,
                           bench.measure(name, elements, 2 * kCopiedBytes * elements, copy));
  LIGHTCC_ASSIGN_OR_RETURN(measured.errors, bench.differences(target, expected));
  return measured;
}

/// A bucket and its tensors: as many launches as there must be, and nothing between tensors in the
/// bucket.
class MeasuredBucket {
 public:
  explicit MeasuredBucket(std::span<const std::size_t> sizes) : sizes_(sizes) {
    for (const std::size_t size : sizes) {
      offsets_.push_back(tensor_bytes_);
      tensor_bytes_ += tiles_of(size * kCopiedBytes, kTensorAlignment) * kTensorAlignment;
      elements_ += size;
    }
  }

  std::size_t elements() const { return elements_; }
  std::size_t tensor_bytes() const { return tensor_bytes_; }
  /// What lies where the tensors are, gaps included, if this is packed.
  std::vector<std::byte> unpacked(std::span<const std::byte> packed, std::byte gap) const {
    std::vector<std::byte> bytes(tensor_bytes_, gap);
    std::size_t next = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const std::size_t of_tensor = sizes_[i] * kCopiedBytes;
      std::copy_n(packed.data() + next, of_tensor, bytes.data() + offsets_[i]);
      next += of_tensor;
    }
    return bytes;
  }

  std::vector<BucketArguments> launches(Address tensors, Address bucket, bool unpacks) const {
    std::vector<BucketArguments> made;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (i % kMaxBucketRows == 0) {
        BucketArguments next{};
        next.bucket = on_gpu(bucket);
        next.unpacks = unpacks ? 1 : 0;
        made.push_back(next);
      }
      BucketArguments& last = made.back();
      last.rows[last.count++] = {.tensor = on_gpu(tensors + offsets_[i]), .first = last.total};
      last.total += sizes_[i];
      bucket += sizes_[i] * kCopiedBytes;
    }
    return made;
  }

 private:
  std::span<const std::size_t> sizes_;
  std::vector<std::size_t> offsets_;  // Bytes.
  std::size_t tensor_bytes_ = 0;
  std::size_t elements_ = 0;
};

Status launch_all(const Bench& bench, const std::vector<BucketArguments>& launches) {
  for (const BucketArguments& arguments : launches) {
    LIGHTCC_RETURN_IF_ERROR(
        launch_copies(bench.driver(), bench.kernels(), kCopiedBytes, bench.stream(), arguments));
  }
  return {};
}

}  // namespace

Measurements measure_copies(Bench& bench, std::size_t elements) {
  Rng rng(elements);
  const std::vector<float> values = made_up_values(elements, rng);
  const auto expected = std::as_bytes(std::span(values));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory from,
                           allocate_device_memory(bench.driver(), expected.size()));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory to,
                           allocate_device_memory(bench.driver(), expected.size()));
  const Draining draining(bench);
  LIGHTCC_RETURN_IF_ERROR(bench.write(from.get(), expected));
  BucketArguments arguments{};
  arguments.rows[0] = {.tensor = on_gpu(from.get()), .first = 0};
  arguments.bucket = on_gpu(to.get());
  arguments.total = elements;
  arguments.count = 1;
  const std::vector<BucketArguments> launches{arguments};
  LIGHTCC_ASSIGN_OR_RETURN(
      Measured by_kernel,
      measure_copy(bench, "copy by kernel", elements, to.get(), expected, [&](std::size_t) {
        return launch_all(bench, launches);
      }));
  LIGHTCC_ASSIGN_OR_RETURN(
      Measured by_driver,
      measure_copy(bench, "copy by driver", elements, to.get(), expected, [&](std::size_t) {
        return bench.driver().check(bench.driver().call().copy_on_device(
                                        to.get(), from.get(), expected.size(), bench.stream()),
                                    "cuMemcpyDtoDAsync");
      }));
  return std::vector{std::move(by_kernel), std::move(by_driver)};
}

Measurements measure_buckets(Bench& bench, std::span<const std::size_t> sizes) {
  const MeasuredBucket bucket(sizes);
  Rng rng(sizes.size());
  const std::vector<float> values = made_up_values(bucket.elements(), rng);
  const auto packed = std::as_bytes(std::span(values));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory tensors,
                           allocate_device_memory(bench.driver(), bucket.tensor_bytes()));
  LIGHTCC_ASSIGN_OR_RETURN(const DeviceMemory memory,
                           allocate_device_memory(bench.driver(), packed.size()));
  const Draining draining(bench);
  constexpr std::byte kGap{0x5A};
  const std::vector<std::byte> unpacked = bucket.unpacked(packed, kGap);
  LIGHTCC_RETURN_IF_ERROR(bench.write(tensors.get(), unpacked));
  const auto packs = bucket.launches(tensors.get(), memory.get(), false);
  LIGHTCC_ASSIGN_OR_RETURN(
      Measured pack,
      measure_copy(bench, "pack", bucket.elements(), memory.get(), packed, [&](std::size_t) {
        return launch_all(bench, packs);
      }));
  const auto unpacks = bucket.launches(tensors.get(), memory.get(), true);
  // What lies between tensors stays as it is.
  const std::vector<std::byte> gaps(unpacked.size(), kGap);
  LIGHTCC_RETURN_IF_ERROR(bench.write(memory.get(), packed));
  LIGHTCC_RETURN_IF_ERROR(bench.write(tensors.get(), gaps));
  LIGHTCC_ASSIGN_OR_RETURN(Measured unpack,
                           bench.measure("unpack", bucket.elements(), pack.bytes, [&](std::size_t) {
                             return launch_all(bench, unpacks);
                           }));
  LIGHTCC_ASSIGN_OR_RETURN(unpack.errors, bench.differences(tensors.get(), unpacked));
  return std::vector{std::move(pack), std::move(unpack)};
}

}  // namespace lightcc::cuda
