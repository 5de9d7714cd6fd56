// Steps whose residual belongs to quantised elements.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "lightcc/compression/quantized/quantize.hpp"
#include "lightcc/compression/residual/host_residual.hpp"

namespace lightcc {

Result<bool> HostResidual::quantize(const std::byte* shard,
                                    std::span<const ShardRange> parts,
                                    std::optional<std::size_t> own,
                                    Compressor compressor,
                                    std::span<std::byte> out,
                                    SimdLevel level) {
  LIGHTCC_RETURN_IF_ERROR(begin_quantizing(level));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ShardRange& part = parts[i];
    const std::byte* in = shard == nullptr ? nullptr : shard + part.begin * element_size(dtype_);
    if (i == own) {
      const std::size_t lanes = part.begin * lane_bytes();
      accumulate(
          in, residual_.current() + lanes, residual_.next() + lanes, part.size_elems(), dtype_);
      continue;
    }
    const std::size_t bytes = quantized_bytes(part.size_elems(), bits_of(compressor));
    quantize_range(in, part, compressor, out.first(bytes), level);
    out = out.subspan(bytes);
  }
  measure(shard, own ? parts[*own] : ShardRange());
  return pending_ == Pending::kFinite;
}

Status HostResidual::begin_quantizing(SimdLevel level) {
  if (is_pending()) {
    return make_error(ErrorCode::kInternal,
                      "quantising while a step is neither committed nor rolled back");
  }
  begin(0.0, level);    // A step without momentum.
  next_forecast_ = {};  // The next top-k step finds its own.
  energy_ = {};
  pending_ = Pending::kFinite;
  return {};
}

bool HostResidual::quantize_range(const std::byte* in,
                                  const ShardRange& range,
                                  Compressor compressor,
                                  std::span<std::byte> out,
                                  SimdLevel level) {
  const std::size_t lanes = range.begin * lane_bytes();
  const bool finite = lightcc::quantize(in,
                                        residual_.current() + lanes,
                                        residual_.next() + lanes,
                                        range.size_elems(),
                                        {.dtype = dtype_, .compressor = compressor},
                                        out,
                                        level);
  pending_ = finite ? pending_ : Pending::kNonFinite;
  return finite;
}

void HostResidual::skip_range(const ShardRange& range) {
  std::fill_n(residual_.next() + range.begin * lane_bytes(),
              range.size_elems() * lane_bytes(),
              std::byte{0});
}

Result<bool> HostResidual::quantize_sum(std::span<const std::span<const std::byte>> parts,
                                        const ShardRange& range,
                                        Compressor compressor,
                                        std::span<std::byte> out,
                                        SimdLevel level) {
  if (!is_pending()) {
    return make_error(ErrorCode::kInternal, "quantising a sum without a step");
  }
  const bool finite = lightcc::quantize_sum(parts,
                                            range.size_elems(),
                                            {.dtype = dtype_, .compressor = compressor},
                                            residual_.next() + range.begin * lane_bytes(),
                                            out,
                                            level);
  if (!finite) {
    pending_ = Pending::kNonFinite;
  }
  return finite;
}

}  // namespace lightcc
