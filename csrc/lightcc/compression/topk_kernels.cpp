#include "lightcc/compression/topk_kernels.hpp"

namespace lightcc {
namespace {

Status not_here() {
  return make_error(ErrorCode::kUnimplemented,
                    "int8, fp8, int4 and PowerSGD compression is for tensors in host memory; "
                    "others can be top-k compressed");
}

}  // namespace

Result<std::unique_ptr<Work>> TopkShardState::quantize(const std::byte* /*shard*/,
                                                       std::span<const ShardRange> /*parts*/,
                                                       Compressor /*compressor*/,
                                                       std::span<std::byte> /*out*/,
                                                       bool& /*non_finite*/) {
  return not_here();
}

Result<std::unique_ptr<Work>> TopkShardState::requantize(
    std::span<const std::span<const std::byte>> /*parts*/,
    const ShardRange& /*range*/,
    Compressor /*compressor*/,
    std::span<std::byte> /*out*/,
    bool& /*non_finite*/) {
  return not_here();
}

Result<LowRankState> TopkKernels::make_low_rank_state(DataType /*dtype*/,
                                                      const MatrixShape& /*matrix*/,
                                                      std::size_t /*rank*/) {
  return not_here();
}

Result<LowRankState> TopkKernels::load_low_rank_state(std::span<const std::byte> /*saved*/) {
  return not_here();
}

Status TopkKernels::dequantize(std::span<const std::span<const std::byte>> /*parts*/,
                               std::size_t /*elements*/,
                               const QuantizedFormat& /*format*/,
                               double /*factor*/,
                               std::byte* /*out*/) {
  return not_here();
}

Status TopkKernels::add_to_sums(const std::byte* /*dense*/,
                                const std::byte* /*given*/,
                                std::size_t /*elements*/,
                                DataType /*dtype*/,
                                SampleSums& /*sums*/) {
  return make_error(ErrorCode::kUnimplemented, "steps are not sampled in this kind of memory");
}

}  // namespace lightcc
