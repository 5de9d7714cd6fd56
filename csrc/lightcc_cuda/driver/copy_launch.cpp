#include "lightcc_cuda/driver/copy_launch.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "lightcc_cuda/kernels/bucket.hpp"

namespace lightcc::cuda {
namespace {

constexpr std::size_t kMaxUnit = sizeof(std::uint32_t);
// More blocks than all GPUs run at once have nothing to do sooner.
constexpr u64 kMaxBlocks = 1024;

u8* at(Address address) {
  return reinterpret_cast<u8*>(address);  // NOLINT: of the GPU
}

/// The largest number of bytes, at most 4, in which all parts can be counted and addressed.
std::size_t unit_of(std::span<const BucketPart> parts) {
  std::uint64_t bits = kMaxUnit;
  for (const BucketPart& part : parts) {
    bits |= part.tensor | part.offset | part.bytes;
  }
  return std::size_t{1} << std::countr_zero(bits);
}

}  // namespace

Status copy_bucket(const Driver& driver,
                   const KernelTable& kernels,
                   Address bucket,
                   std::span<const BucketPart> parts,
                   Copying direction,
                   StreamHandle* stream) {
  const std::size_t unit = unit_of(parts);
  FunctionHandle* const kernel = kernels.find("lightcc_copy_" + std::to_string(unit));
  BucketArguments arguments{};
  arguments.unpacks = direction == Copying::kUnpack ? 1 : 0;
  std::size_t begin = 0;  // What the launch begins with, in the bucket.
  std::size_t next = 0;
  // What is no tensor's is copied to where it is.
  const auto add = [&](Address tensor, std::size_t end) {
    arguments.rows[arguments.count++] = {.tensor = at(tensor == 0 ? bucket + next : tensor),
                                         .first = (next - begin) / unit};
    next = end;
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const BucketPart& part = parts[i];
    if (arguments.count == 0) {
      begin = part.offset;
      next = begin;
    } else if (part.offset > next) {
      add(0, part.offset);
    }
    add(part.tensor, part.offset + part.bytes);
    if (i + 1 == parts.size() || arguments.count + 2 > kMaxBucketRows) {
      arguments.bucket = at(bucket + begin);
      arguments.total = (next - begin) / unit;
      const u64 tiles = (arguments.total + kBucketTile - 1) / kBucketTile;
      const auto blocks = static_cast<unsigned>(std::min(tiles, kMaxBlocks));
      LIGHTCC_RETURN_IF_ERROR(launch(driver, kernel, blocks, kBucketThreads, stream, arguments));
      arguments.count = 0;
    }
  }
  return {};
}

}  // namespace lightcc::cuda
