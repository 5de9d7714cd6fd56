#include "lightcc_cuda/staging/packer.hpp"

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

/// Whether a part can travel with those of a run.
bool may_follow(const std::vector<const StagedPart*>& run, const StagedPart& part) {
  if (run.empty() || part.bytes > kLargestPacked) {
    return run.empty();
  }
  const StagedPart& last = *run.back();
  return last.bytes <= kLargestPacked && part.offset >= end_of(last) &&
         part.offset - end_of(last) < kMaxGap && end_of(part) - run.front()->offset <= kRunBytes;
}

}  // namespace

Status Packer::copy(const StagedBlock& block,
                    std::int32_t device,
                    Copying direction,
                    StreamHandle* stream) {
  Run run;
  for (const StagedPart& part : block.parts) {
    if (part.bytes == 0) {
      continue;
    }
    const bool is_copied = gpu_end(part, direction) != nullptr && part.device == device;
    if (!is_copied || !may_follow(run, part)) {
      LIGHTCC_RETURN_IF_ERROR(copy_run(block, run, direction, stream));
      run.clear();
    }
    if (is_copied) {
      run.push_back(&part);
    }
  }
  return copy_run(block, run, direction, stream);
}

Status Packer::copy_run(const StagedBlock& block,
                        const Run& run,
                        Copying direction,
                        StreamHandle* stream) {
  if (kernels_ != nullptr && run.size() >= kFewestPacked) {
    if (const Result<Address> bucket = memory(stream); bucket.ok()) {
      return copy_packed(block, run, *bucket, direction, stream);
    }
    kernels_ = nullptr;
  }
  for (const StagedPart* const part : run) {
    const Address on_gpu = gpu_address(gpu_end(*part, direction));
    std::byte* const on_host = block.at(*part);
    LIGHTCC_RETURN_IF_ERROR(direction == Copying::kPack
                                ? driver_.copy_to_host(on_host, on_gpu, part->bytes, stream)
                                : driver_.copy_to_device(on_gpu, on_host, part->bytes, stream));
  }
  return {};
}

Result<Address> Packer::memory(StreamHandle* stream) {
  if (memory_ == nullptr) {
    LIGHTCC_ASSIGN_OR_RETURN(memory_, allocate_zeros(driver_, kRunBytes, stream));
  }
  return gpu_address(memory_.get());
}

Status Packer::copy_packed(const StagedBlock& block,
                           const Run& run,
                           Address bucket,
                           Copying direction,
                           StreamHandle* stream) {
  std::vector<BucketPart> parts;
  for (const StagedPart* const part : run) {
    parts.push_back({.tensor = gpu_address(gpu_end(*part, direction)),
                     .offset = part->offset - run.front()->offset,
                     .bytes = part->bytes});
  }
  // From the first byte of the run to its last, with gaps.
  const std::size_t bytes = parts.back().offset + parts.back().bytes;
  std::byte* const on_host = block.at(*run.front());
  if (direction == Copying::kUnpack) {
    LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_device(bucket, on_host, bytes, stream));
  }
  LIGHTCC_RETURN_IF_ERROR(copy_bucket(driver_, *kernels_, bucket, parts, direction, stream));
  return direction == Copying::kPack ? driver_.copy_to_host(on_host, bucket, bytes, stream)
                                     : Status();
}

}  // namespace lightcc::cuda
