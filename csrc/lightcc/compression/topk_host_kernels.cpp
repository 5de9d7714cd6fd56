#include "lightcc/compression/topk_host_kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "lightcc/compression/finite.hpp"
#include "lightcc/compression/merge.hpp"

namespace lightcc {
namespace {

class HostShardState final : public TopkShardState {
 public:
  HostShardState(TopkState state, SimdLevel simd) : state_(std::move(state)), simd_(simd) {}

  Result<std::unique_ptr<Work>> compress(const std::byte* shard,
                                         const TopkRequest& request,
                                         std::span<std::byte> list,
                                         TopkOutcome& outcome) override {
    std::vector<std::byte> zeros;
    if (shard == nullptr) {
      zeros.resize(std::max<std::size_t>(shard_bytes(), 1));
      shard = zeros.data();
    }
    TopkRequest at_level = request;
    at_level.level = simd_;
    LIGHTCC_ASSIGN_OR_RETURN(outcome, state_.compress(shard, 1.0, at_level, list));
    return std::unique_ptr<Work>();
  }
  Result<std::unique_ptr<Work>> flush(const std::byte* shard,
                                      std::byte* out,
                                      double momentum) override {
    if (shard == nullptr) {
      std::memset(out, 0, shard_bytes());
    } else if (shard != out) {
      std::memcpy(out, shard, shard_bytes());
    }
    LIGHTCC_RETURN_IF_ERROR(state_.flush_into(out, 1.0, momentum, simd_));
    return std::unique_ptr<Work>();
  }
  Result<std::unique_ptr<Work>> quantize(const std::byte* shard,
                                         std::span<const ShardRange> parts,
                                         std::optional<std::size_t> own,
                                         Compressor compressor,
                                         std::span<std::byte> out,
                                         bool& non_finite) override {
    LIGHTCC_ASSIGN_OR_RETURN(const bool finite,
                             state_.quantize(shard, parts, own, compressor, out, simd_));
    non_finite = !finite;
    return std::unique_ptr<Work>();
  }
  Result<std::unique_ptr<Work>> quantize_sum(std::span<const std::span<const std::byte>> parts,
                                             const ShardRange& range,
                                             Compressor compressor,
                                             std::span<std::byte> out,
                                             bool& non_finite) override {
    LIGHTCC_ASSIGN_OR_RETURN(const bool finite,
                             state_.quantize_sum(parts, range, compressor, out, simd_));
    non_finite = !finite;
    return std::unique_ptr<Work>();
  }
  DataType dtype() const override { return state_.dtype(); }
  std::size_t numel() const override { return state_.numel(); }
  void commit() override { state_.commit(); }
  void rollback() override { state_.rollback(); }
  bool is_pending() const override { return state_.is_pending(); }
  std::optional<StepEnergy> energy() const override { return state_.energy(); }
  Status scale(double factor) override { return state_.scale(factor); }
  Status save(Bytes& out) const override { return state_.save(out); }

 private:
  std::size_t shard_bytes() const { return state_.numel() * element_size(state_.dtype()); }

  TopkState state_;
  SimdLevel simd_;
};

}  // namespace

Result<std::unique_ptr<TopkShardState>> make_host_state(DataType dtype,
                                                        std::size_t numel,
                                                        SimdLevel simd) {
  try {
    return std::unique_ptr<TopkShardState>(
        std::make_unique<HostShardState>(TopkState(dtype, numel), simd));
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kSystem, "no memory for what is kept back of %zu elements", numel);
  }
}

Result<std::unique_ptr<TopkShardState>> load_host_state(std::span<const std::byte> saved,
                                                        SimdLevel simd) {
  LIGHTCC_ASSIGN_OR_RETURN(TopkState state, TopkState::load(saved));
  return std::unique_ptr<TopkShardState>(std::make_unique<HostShardState>(std::move(state), simd));
}

Result<std::unique_ptr<TopkShardState>> HostTopkKernels::make_state(DataType dtype,
                                                                    std::size_t numel) {
  return make_host_state(dtype, numel, simd_);
}

Result<std::unique_ptr<TopkShardState>> HostTopkKernels::load_state(
    std::span<const std::byte> saved) {
  return load_host_state(saved, simd_);
}

std::shared_ptr<std::byte> HostTopkKernels::allocate(std::size_t bytes) {
  // NOLINTNEXTLINE(modernize-avoid-c-arrays): a vector would write zeros first.
  const std::shared_ptr<std::byte[]> memory(new std::byte[std::max<std::size_t>(bytes, 1)]);
  return {memory, memory.get()};
}

Result<std::unique_ptr<Work>> HostTopkKernels::merge(std::span<const TopkListView> lists,
                                                     std::byte* out,
                                                     std::size_t elements,
                                                     DataType dtype,
                                                     double postscale) {
  LIGHTCC_RETURN_IF_ERROR(merge_lists(lists, out, elements, dtype, postscale));
  return std::unique_ptr<Work>();
}

Status HostTopkKernels::dequantize(std::span<const std::span<const std::byte>> parts,
                                   std::size_t elements,
                                   const QuantizedFormat& format,
                                   double factor,
                                   std::byte* out) {
  lightcc::dequantize(parts, elements, format, factor, out, simd_);
  return {};
}

Result<std::unique_ptr<Work>> HostTopkKernels::check_finite(const std::byte* data,
                                                            std::size_t elements,
                                                            DataType dtype,
                                                            bool& non_finite) {
  non_finite = !is_all_finite(data, elements, dtype);
  return std::unique_ptr<Work>();
}

}  // namespace lightcc
