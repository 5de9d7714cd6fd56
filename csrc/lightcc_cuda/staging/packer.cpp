#include "lightcc_cuda/staging/packer.hpp"

#include <vector>

#include "lightcc_cuda/driver/copy_launch.hpp"

namespace lightcc::cuda {
namespace {

// A launch and a copy take the time of some copies.
constexpr std::size_t kFewestPacked = 4;
// Larger parts fill a copy by themselves.
constexpr std::size_t kLargestPacked = std::size_t{256} << 10;
constexpr std::size_t kRunBytes = std::size_t{4} << 20;
// Between two parts, for the alignment of the second.
constexpr std::size_t kMaxGap = 64;

std::size_t end_of(const StagedPart& part) {
  return part.offset + part.bytes;
}

/// From the first byte of the run to its last, with gaps.
std::size_t extent_of(PackedRun run) {
  return end_of(*run.back()) - run.front()->offset;
}

}  // namespace

bool Packer::packs(PackedRun run, StreamHandle* stream) {
  if (kernels_ == nullptr || run.size() < kFewestPacked) {
    return false;
  }
  if (!memory(stream).ok()) {
    kernels_ = nullptr;
  }
  return kernels_ != nullptr;
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
         part.offset - end_of(last) < kMaxGap && end_of(part) - run.front()->offset <= kRunBytes;
}

Result<Address> Packer::memory(StreamHandle* stream) {
  if (memory_ == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(memory_, allocate_in_order(driver_, kRunBytes, stream));
    LIGHTCC_RETURN_IF_ERROR(driver_.check(
        driver_.call().fill(gpu_address(memory_.get()), 0, kRunBytes, stream), "cuMemsetD8Async"));
  }
  return gpu_address(memory_.get());
}

Status Packer::launch_on(PackedRun run, Copying direction, StreamHandle* stream) {
  LIGHTCC_ASSIGN_OR_RETURN(const Address bucket, memory(stream));
  const std::size_t begin = run.front()->offset;
  std::vector<BucketPart> parts;
  parts.reserve(run.size());
  for (const StagedPart* const part : run) {
    const std::byte* const tensor = direction == Copying::kUnpack ? part->to : part->from;
    parts.push_back(
        {.tensor = gpu_address(tensor), .offset = part->offset - begin, .bytes = part->bytes});
  }
  return copy_bucket(driver_, *kernels_, bucket, parts, direction, stream);
}

Status Packer::copy_to_host(const StagedBlock& block, PackedRun run, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(launch_on(run, Copying::kPack, stream));
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
  return launch_on(run, Copying::kUnpack, stream);
}

}  // namespace lightcc::cuda
