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
  const auto write = [&](Address to, std::span<const std::byte> from) {
    return driver_.copy_to_device(to, from.data(), from.size(), stream);
  };
  LIGHTCC_RETURN_IF_ERROR(
      write(gpu_address(shard.memory.get()) + detail::kLanesAt, saved.residual));
  if (saved.has_velocity) {
    LIGHTCC_RETURN_IF_ERROR(add_velocity(shard, stream));
    LIGHTCC_RETURN_IF_ERROR(write(gpu_address(shard.velocity.get()), saved.velocity));
  }
  return driver_.wait_for_stream(stream);
}

Status TopkSite::save_shard(const TopkShard& shard, Bytes& out, StreamHandle* stream) const {
  const std::size_t bytes = shard.lane_bytes();
  const std::size_t lanes = shard.current * detail::lanes_bytes(shard);
  std::vector<std::byte> residual(bytes);
  std::vector<std::byte> velocity(shard.has_velocity ? bytes : 0);
  LIGHTCC_RETURN_IF_ERROR(driver_.copy_to_host(
      residual.data(), gpu_address(shard.memory.get()) + detail::kLanesAt + lanes, bytes, stream));
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

}  // namespace lightcc::cuda
