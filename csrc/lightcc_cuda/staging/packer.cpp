#include "lightcc_cuda/staging/packer.hpp"

#include <bit>
#include <cstdint>
#include <utility>

#include "lightcc_cuda/driver/copy_launch.hpp"
#include "lightcc_cuda/kernels/bucket.hpp"

namespace lightcc::cuda {
namespace {

// A launch and a copy take the time of some copies.
constexpr std::size_t kFewestPacked = 4;
// Larger parts fill a copy by themselves.
constexpr std::size_t kLargestPacked = std::size_t{256} << 10;
constexpr std::size_t kRunBytes = std::size_t{4} << 20;
// Between two parts, for the alignment of the second.
constexpr std::size_t kMaxGap = 64;
// Each with a gap behind it.
constexpr std::size_t kMaxPacked = kMaxBucketRows / 2;
// All gaps of a run. Blocks of the kernel write them at once, so each has its own.
constexpr std::size_t kGapBytes = kMaxPacked * kMaxGap;
constexpr std::size_t kMaxUnit = sizeof(std::uint64_t);

u8* at(Address address) {
  return reinterpret_cast<u8*>(address);  // NOLINT: of the GPU
}

std::size_t end_of(const StagedPart& part) {
  return part.offset + part.bytes;
}

/// From the first byte of the run to its last, with gaps.
std::size_t extent_of(PackedRun run) {
  return end_of(*run.back()) - run.front()->offset;
}

Address tensor_of(const StagedPart& part, bool unpacks) {
  const std::byte* const data = unpacks ? part.to : part.from;
  return reinterpret_cast<Address>(data);  // NOLINT: of the GPU, never read here
}

/// The largest number of bytes, at most 8, in which all of the run can be counted and addressed.
std::size_t unit_of(PackedRun run, bool unpacks) {
  std::uint64_t bits = kMaxUnit;
  for (const StagedPart* const part : run) {
    bits |= tensor_of(*part, unpacks) | part->bytes | (part->offset - run.front()->offset);
  }
  return std::size_t{1} << std::countr_zero(bits);
}

}  // namespace

Packer::Packer(const Driver& driver) : driver_(driver) {
  Result<KernelTable> loaded = KernelTable::load_copies(driver);
  if (loaded.ok()) {
    kernels_ = std::move(*loaded);
  }
}

bool Packer::packs(PackedRun run, StreamHandle* stream) {
  if (!kernels_.has_value() || run.size() < kFewestPacked) {
    return false;
  }
  if (!memory(stream).ok()) {
    kernels_.reset();
  }
  return kernels_.has_value();
}

bool Packer::may_follow(PackedRun run, const StagedPart& part) {
  if (part.bytes > kLargestPacked) {
    return false;
  }
  if (run.empty()) {
    return true;
  }
  const StagedPart& last = *run.back();
  return last.bytes <= kLargestPacked && part.offset >= end_of(last) &&
         part.offset - end_of(last) < kMaxGap && run.size() < kMaxPacked &&
         end_of(part) - run.front()->offset <= kRunBytes;
}

Result<Address> Packer::memory(StreamHandle* stream) {
  if (memory_ == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(memory_, allocate_in_order(driver_, kRunBytes + kGapBytes, stream));
    LIGHTCC_RETURN_IF_ERROR(driver_.check(
        driver_.call().fill(gpu_address(memory_.get()), 0, kRunBytes + kGapBytes, stream),
        "cuMemsetD8Async"));
  }
  return gpu_address(memory_.get());
}

Status Packer::launch_on(PackedRun run, bool unpacks, StreamHandle* stream) {
  LIGHTCC_ASSIGN_OR_RETURN(const Address bucket, memory(stream));
  const std::size_t unit = unit_of(run, unpacks);
  const std::size_t begin = run.front()->offset;
  BucketArguments arguments{};
  std::size_t next = begin;
  Address gap = bucket + kRunBytes;
  const auto add = [&](Address tensor, std::size_t offset) {
    arguments.rows[arguments.count++] = {.tensor = at(tensor), .first = (offset - begin) / unit};
  };
  for (const StagedPart* const part : run) {
    if (part->offset > next) {
      add(gap, next);
      gap += kMaxGap;
    }
    add(tensor_of(*part, unpacks), part->offset);
    next = end_of(*part);
  }
  arguments.bucket = at(bucket);
  arguments.total = extent_of(run) / unit;
  arguments.unpacks = unpacks ? 1 : 0;
  return launch_copies(driver_, *kernels_, unit, stream, arguments);
}

Status Packer::copy_to_host(const StagedBlock& block, PackedRun run, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(launch_on(run, false, stream));
  return driver_.check(
      driver_.call().copy_to_host(
          block.at(*run.front()), gpu_address(memory_.get()), extent_of(run), stream),
      "cuMemcpyDtoHAsync");
}

Status Packer::copy_to_device(const StagedBlock& block, PackedRun run, StreamHandle* stream) {
  LIGHTCC_ASSIGN_OR_RETURN(const Address bucket, memory(stream));
  LIGHTCC_RETURN_IF_ERROR(driver_.check(
      driver_.call().copy_to_device(bucket, block.at(*run.front()), extent_of(run), stream),
      "cuMemcpyHtoDAsync"));
  return launch_on(run, true, stream);
}

}  // namespace lightcc::cuda
