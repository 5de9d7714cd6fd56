#include "lightcc_cuda/staging/topk_site.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "lightcc_cuda/staging/topk_site_impl.hpp"

namespace lightcc::cuda {

Result<Address> TopkSite::scratch(std::size_t bytes, StreamHandle* stream) {
  if (scratch_bytes_ < bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, std::size_t{64} << 10));
    scratch_ = nullptr;
    scratch_bytes_ = 0;
    LIGHTCC_ASSIGN_OR_RETURN(scratch_, allocate_in_order(driver_, size, stream));
    scratch_bytes_ = size;
  }
  return gpu_address(scratch_.get());
}

Status TopkSite::add_velocity(TopkShard& shard, StreamHandle* stream) const {
  const std::size_t bytes = 2 * detail::lanes_bytes(shard);
  LIGHTCC_ASSIGN_OR_RETURN(shard.velocity, allocate_zeros(driver_, bytes, stream));
  return {};
}

Status TopkSite::load_shard(TopkShard& shard, const SavedShard& saved, StreamHandle* stream) {
  LIGHTCC_RETURN_IF_ERROR(kernels_.status());
  shard.dtype = saved.dtype;
  shard.numel = saved.numel;
  shard.step = saved.step;
  shard.forecast = saved.forecast;
  shard.has_velocity = saved.has_velocity;
  const std::size_t bytes = detail::kLanesAt + 2 * detail::lanes_bytes(shard);
  LIGHTCC_ASSIGN_OR_RETURN(shard.memory, allocate_zeros(driver_, bytes, stream));
  if (saved.residual.empty()) {
    return {};
  }
  TopkProgress progress{};
  progress.forecast = {saved.forecast.threshold, saved.forecast.ideal, saved.forecast.k};
  progress.step = saved.step;
  const auto write = [&](Address to, std::span<const std::byte> from) {
    return driver_.copy_to_device(to, from.data(), from.size(), stream);
  };
  const Address memory = gpu_address(shard.memory.get());
  LIGHTCC_RETURN_IF_ERROR(write(memory, std::as_bytes(std::span(&progress, 1))));
  LIGHTCC_RETURN_IF_ERROR(write(memory + detail::kLanesAt, saved.residual));
  if (saved.has_velocity) {
    LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
    LIGHTCC_RETURN_IF_ERROR(write(gpu_address(shard.velocity.get()), saved.velocity));
  }
  return driver_.wait_for_stream(stream);
}

Status TopkSite::save_shard(TopkShard& shard, Bytes& out, StreamHandle* stream) {
  if (shard.is_commit_due) {
    const TopkTensor row = detail::row_of(shard);
    LIGHTCC_ASSIGN_OR_RETURN(const Address rows, scratch(sizeof(row), stream));
    LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_device(rows, &row, sizeof(row), stream));
    LIGHTCC_RETURN_IF_ERROR(commit(1, rows, stream));
    shard.is_commit_due = false;
  }
  const Address memory = gpu_address(shard.memory.get());
  TopkProgress progress{};
  LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_host(&progress, memory, sizeof(progress), stream));
  LIGHTCC_RETURN_IF_ERROR(driver_.wait_for_stream(stream));
  if (progress.step != shard.step) {
    return make_error(ErrorCode::kInternal,
                      "a GPU has made %llu steps of top-k compression, where the host counts %llu",
                      static_cast<unsigned long long>(progress.step),
                      static_cast<unsigned long long>(shard.step));
  }
  const std::size_t bytes = shard.numel * shard.lane_bytes();
  const std::size_t lanes = progress.current * detail::lanes_bytes(shard);
  std::vector<std::byte> residual(bytes);
  std::vector<std::byte> velocity(shard.has_velocity ? bytes : 0);
  LIGHTCC_RETURN_IF_ERROR(
      driver_.copy_to_host(residual.data(), memory + detail::kLanesAt + lanes, bytes, stream));
  if (shard.has_velocity) {
    const Address from = gpu_address(shard.velocity.get()) + lanes;
    LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_host(velocity.data(), from, bytes, stream));
  }
  LIGHTCC_RETURN_IF_ERROR(driver_.wait_for_stream(stream));
  write_saved_shard({.dtype = shard.dtype,
                     .numel = shard.numel,
                     .step = shard.step,
                     .forecast = shard.forecast,
                     .residual = residual,
                     .velocity = velocity,
                     .has_velocity = shard.has_velocity},
                    out);
  return {};
}

Status TopkSite::commit(std::size_t count, Address rows, StreamHandle* stream) const {
  TopkArguments arguments{};
  arguments.tensors = detail::at<const TopkTensor>(rows);
  arguments.count = static_cast<u32>(count);
  return run("topk_commit", count, kWarpLanes, arguments, stream);
}

}  // namespace lightcc::cuda
